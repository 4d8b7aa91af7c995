"""The command that compares results with those of SillyTavern counts and shows differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import check_goldens

CASES: list[dict[str, Any]] = [
    {"input": "{{char}} nods.", "vars": {}, "sillytavern": "Seraphina nods."},
    {"input": "{{getvar::n}}", "vars": {"n": 3}, "sillytavern": "3"},
    {"input": "{{getvar::m}}", "vars": {}, "sillytavern": "7"},
]


ENTRIES = [
    {"comment": "A", "key": ["sea"], "content": "Salt."},
    {"comment": "B", "key": ["sea"], "content": "Foam."},
]
NOTHING: dict[str, Any] = {
    "after": "", "anTop": [], "anBottom": [], "em": [], "depth": [], "outlets": {},
}  # fmt: skip
LORE: list[dict[str, Any]] = [
    {
        "id": f"ties#{number}",
        "rule": "ties",
        "note": "",
        "books": {"char": ENTRIES},
        "messages": [{"name": "Anna", "text": "the sea"}],
        "sillytavern": [{"active": active, "before": before, **NOTHING}],
    }
    for number, (active, before) in enumerate(
        [(["A", "B"], "Foam.\nSalt."), (["A", "B"], "Salt.\nFoam."), (["A"], "Salt.")]
    )
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "macros.json"
    made.write_text(json.dumps(CASES), encoding="utf-8")
    return made


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["check_goldens.py", *arguments])
    return check_goldens.main()


def test_agreement_is_counted_by_rule(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "macros", str(file), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    counted = {"cases": 3, "agree": 2, "order": 0, "differ": 1}
    assert counted.items() <= found.items()
    assert found["rules"]["getvar"] == {"cases": 2, "agree": 1, "order": 0, "differ": 1}


def test_different_answers_are_both_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "macros", str(file))
    out = capsys.readouterr().out
    assert "{{getvar::m}}\n  theirs '7'\n  ours   ''" in out
    assert "nods" not in out


def test_lore_in_another_order_is_counted_apart_from_other_lore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "world_info.jsonl"
    made.write_text("".join(json.dumps(case) + "\n" for case in LORE), encoding="utf-8")
    run(monkeypatch, "world_info", str(made), "--json")
    found = json.loads(capsys.readouterr().out)
    counted = {"cases": 3, "agree": 1, "order": 1, "differ": 1}
    assert found == {**counted, "rules": {"ties": counted}}
