"""Commands in the documents, functions that benchmarks time, and names that torture replaces."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest

from scripts.bench import commands, retrieval
from scripts.bench.campaign import STATE_STAGE
from scripts.bench.data import REPOSITORY
from scripts.bench.memory import INDEXING_STAGES
from scripts.bench.turn import STAGES
from scripts.torture.process import SHARED_INDEX, SHORTER_WAITS

DOCUMENTS = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").rglob("*.md")]
DOCUMENTED_COMMANDS = sorted(
    {found for text in DOCUMENTS for found in re.findall(r"scripts/bench\.py ([^`#\n]+)", text)}
)


def list_names(command: str) -> list[str]:
    return list(takewhile(lambda word: word[0] not in "-[", command.split()))


@pytest.mark.parametrize("command", DOCUMENTED_COMMANDS)
def test_documented_commands_have_their_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        commands.run_command("scripts.bench", commands.NAMES, [*list_names(command), "--help"])
    assert end.value.code == 0
    options = re.findall(r"--[a-z-]+", command)
    assert not set(options) - set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_every_benchmark_of_retrieval_is_documented() -> None:
    documented = {tuple(list_names(command)) for command in DOCUMENTED_COMMANDS}
    assert not {("retrieval", name) for name in retrieval.NAMES} - documented


def test_every_timed_function_exists() -> None:
    of_indexing = [each for watched in INDEXING_STAGES.values() for each in watched]
    of_turns = [watched for watched, _ in STAGES]
    missing = [
        name
        for holder, name in [STATE_STAGE, *of_indexing, *of_turns]
        if not callable(getattr(holder, name, None))
    ]
    assert missing == []


def test_every_replaced_name_exists() -> None:
    names = [(holder, name) for holder, name, _ in (*SHARED_INDEX, *SHORTER_WAITS)]
    assert [name for holder, name in names if not hasattr(holder, name)] == []
