"""The commands of the tour, as a reader pastes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import SYSTEMS, python_path
from tests.support.process import serving, serving_installed

ROOT = Path(__file__).parents[2]


@pytest.fixture(
    params=["", *(pytest.param(system, marks=pytest.mark.thorough) for system in SYSTEMS)]
)
def server(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of a server, here or on a simulated system."""
    if request.param:
        monkeypatch.setenv("PYTHONPATH", python_path(request.param))
    serve = serving_installed if request.param else serving
    with serve(tmp_path, demo_tokens_per_second=0) as served:
        yield served.url


def walk_through(path: str) -> str:
    """Return the commands of the marked part of a page."""
    text = (ROOT / path).read_text()
    [marked] = re.findall(
        r"<!-- walk-through -->(.*?)<!-- end of the walk-through -->", text, flags=re.DOTALL
    )
    return "\n".join(re.findall(r"```sh\n(.*?)```", marked, flags=re.DOTALL))


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_walk_through_works_as_it_stands(server: str, tmp_path: Path) -> None:
    parts = [walk_through(f"docs/tour/{name}.md") for name in ("first-chat", "lore", "memory")]
    evening, models = walk_through("docs/tour/campaigns.md"), walk_through("docs/tour/models.md")
    script = "\n".join([*parts, "echo; echo EVENING", evening, "echo; echo MODELS", models])
    assert "http://127.0.0.1:8000" in script
    # Only the address differs: another server may be listening on the usual one.
    script = script.replace("http://127.0.0.1:8000", server)
    script = script.replace("@docs/example-", f"@{ROOT}/docs/example-")
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    said, rest = result.stdout.split("\nEVENING\n")
    evening_said, models_said = rest.split("\nMODELS\n")
    assert "recovery_code" in said
    assert said.count("event: turn.completed") == 3
    decoder = json.JSONDecoder()
    context, end = decoder.raw_decode(said[said.index("{\n") :])
    assert context["prompt"][0]["role"] == "system"
    assert "Marlena" in context["prompt"][0]["text"]
    page, _ = decoder.raw_decode(said[said.index("{\n") + end :].lstrip())
    assert [line["role"] for line in page["items"]] == ["assistant", "user", "assistant"]
    assert page["items"][-1]["sibling_count"] == 2
    assert "{{" not in page["items"][0]["text"]
    previews = [each.start() for each in re.finditer(r'\{\n    "model": ', said)]
    preview, _ = decoder.raw_decode(said[previews[-2] :])
    reasons = {item["title"]: item["reason"] for item in preview["retrieved"]}
    assert 'key "lighthouse" in the line' in reasons["The lighthouse"]
    assert 'key "Saltwick" in entry "The lighthouse"' in reasons["Saltwick"]
    remembering, _ = decoder.raw_decode(said[previews[-1] :])
    events = [item["text"] for item in remembering["retrieved"] if item["kind"] == "event"]
    assert any("silver key" in event for event in events)
    assert evening_said.count("event: turn.awaiting_choice") == 1
    assert evening_said.count("event: turn.completed") == 1
    state, _ = decoder.raw_decode(evening_said[evening_said.rindex("\n{\n") :].lstrip())
    assert [clock["filled"] for clock in state["clocks"]] == [1]
    assert {each["name"] for each in state["entities"]} == {"The Salty Sigil", "Jake"}
    assert '"id": "ollama/llama3.2"' in models_said
    assert '"model":"ollama/llama3.2"' in models_said
