"""Languages of the page: no visible text is outside texts.json, and translations fit it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from backend.web.controller import FOLDER, TRANSLATION, PageFiles

COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`\\])//[^\n]*", re.DOTALL)
STRING = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\]|\\.)*)`|'((?:[^'\\\n]|\\.)*)'")
HOLE = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
WORD = r"[\w’'-]+"
PROSE = re.compile(rf"[A-Z][a-z]+(,? {WORD})*[.!?…]?|{WORD}(,? {WORD})+[.!?…]")
"""Words that begin with a capital or end with a punctuation mark. Others are names in the code."""

NAMES = {
    "Talekeeper",
    # Values of the browser: keys, events, headers, elements.
    "Accept", "Authorization", "Backspace", "Delete", "End", "Enter", "Escape", "Files", "Home",
    "Tab", "AbortError", "Basic", "Content", "GET", "POST", "Infinity",
}  # fmt: skip
PLACEHOLDERS = re.compile(r"\{\w+\}")
FORMS = {"zero", "one", "two", "few", "many", "other"}


def find_visible(source: str) -> Iterator[str]:
    """Yield the strings of a module that read like text for people."""
    for groups in STRING.findall(COMMENT.sub("", source)):
        text = HOLE.sub("", next((each for each in groups if each), "")).strip()
        if PROSE.fullmatch(text) and text not in NAMES:
            yield text


def test_no_visible_text_is_outside_the_texts() -> None:
    found = {
        str(path.relative_to(FOLDER)): texts
        for path in sorted(FOLDER.rglob("*.js"))
        if (texts := sorted(set(find_visible(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


def flatten(texts: dict[str, Any], above: str = "") -> dict[str, str]:
    """Return each text by its path. The forms of a plural have one path: the last one is used."""
    found: dict[str, str] = {}
    for key, value in texts.items():
        if isinstance(value, dict):
            found |= flatten(cast("dict[str, Any]", value), f"{above}{key}.")
        else:
            found[above.rstrip(".") if key in FORMS else above + key] = value
    return found


def test_translations_have_known_texts_with_the_same_placeholders() -> None:
    english = flatten(json.loads((FOLDER / "texts.json").read_text(encoding="utf-8")))
    for path in FOLDER.glob("texts.*.json"):
        texts = json.loads(path.read_text(encoding="utf-8"))
        name = TRANSLATION.fullmatch(path.name)
        assert name is not None
        assert texts["language"] == name[1]
        own = flatten(texts)
        assert own.keys() <= english.keys(), path.name
        for where, text in own.items():
            assert set(PLACEHOLDERS.findall(text)) <= set(PLACEHOLDERS.findall(english[where])), (
                where
            )


def test_the_document_lists_the_translations(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<html data-languages="{languages}">', encoding="utf-8")
    (tmp_path / "worker.js").touch()
    for name in ("texts.json", "texts.pt-BR.json", "texts.de.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert PageFiles(tmp_path).index.plain == b'<html data-languages="de pt-BR">'
