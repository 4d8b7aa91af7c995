"""docs/reference/macros.md lists every macro, and each of its examples gives what it says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from backend.context.macros import (
    MACROS,
    MAX_CHARACTERS,
    MAX_MACROS,
    MacroBudget,
    MacroContext,
    Variables,
    expand,
)
from backend.context.macros.model import (
    MAX_DEPTH,
    MAX_DICE,
    MAX_REQUEST_CHARACTERS,
    MAX_REQUEST_MACROS,
    MAX_SIDES,
)

PAGE = (Path(__file__).parents[3] / "docs/reference/macros.md").read_text(encoding="utf-8")

ANNA_AND_MAGS = MacroContext(
    user="Anna",
    char="Mags",
    now=datetime(2026, 3, 4, 15, 5, tzinfo=UTC),
    chat_seed=1,
    message_seed=2,
    model="demo",
    max_prompt=200_000,
    persona="{{user}} is a cartographer.",
    description="{{char}} keeps the lighthouse.",
    personality="dry, patient",
    scenario="A storm traps {{user}}.",
    mes_examples="{{char}}: Seen worse.",
    char_prompt="Write as {{char}}.",
    original="Stay in scene.",
    char_instruction="Stay dry.",
    char_depth_prompt="{{char}} limps.",
    creator_notes="By Ada.",
    greetings=("Who is it?", "Back again, {{user}}?"),
    last_message_id="12",
    max_response=4_096,
    authors_note="{{char}} is lying.",
    char_version="1.2",
    last_message="The lamp is out.",
    last_user_message="Is anyone there?",
    last_char_message="The lamp is out.",
    summary="Anna came by boat.",
    outlets={"sea": "The sea is rising."},
    idle=timedelta(hours=3, minutes=20),
)
VARIABLES = Variables(local={"hp": "10"}, global_={"tone": "grim"})


class Row(NamedTuple):
    macros: str
    example: str
    gives: str


def rows() -> list[Row]:
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in PAGE.splitlines()
        if line.startswith("| `")
    ]
    return [Row(macros, spans(example)[0], gives) for macros, _, example, gives in cells]


def spans(cell: str) -> list[str]:
    return [span.replace("\\n", "\n") for span in re.findall(r"`([^`]*)`", cell)]


def test_the_page_lists_every_macro_and_no_other() -> None:
    listed = {
        name
        for row in rows()
        for name in re.findall(r"\{\{(//|[.$]|/?[a-z_]+)", row.macros, re.IGNORECASE)
    }

    known = {name for macro in MACROS.values() for name in (macro.name, *macro.aliases)}
    instruct = {name for name in known if name.startswith("instruct")}
    assert listed - instruct == (known - instruct) | {"if", "/if"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.example)
def test_an_example_gives_what_the_page_says(row: Row) -> None:
    text = expand(row.example, ANNA_AND_MAGS, VARIABLES, place="docs", budget=MacroBudget()).text

    if " to " in row.gives:
        least, most = spans(row.gives)
        assert int(least) <= int(text) <= int(most)
    else:
        assert text in spans(row.gives)


def test_the_page_names_the_limits() -> None:
    limits = PAGE.partition("## Limits")[2]

    figures = (
        *(MAX_CHARACTERS, MAX_MACROS, MAX_DEPTH, MAX_DICE, MAX_SIDES),
        *(MAX_REQUEST_CHARACTERS, MAX_REQUEST_MACROS),
    )
    for figure in figures:
        assert f"{figure:,} " in limits
