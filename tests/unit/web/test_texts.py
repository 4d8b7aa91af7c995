"""The page's texts: what modules ask for is there, and what is there is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from backend.web.files import FOLDER

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?P<text>\"(?:[^\"\\]|\\.)*\"|`[^`]*`)|(?P<word>\w+)|(?P<sign>[{}:])",
    re.DOTALL,
)
LITERAL = re.compile(r"\"([\w.-]+)\"|`([\w.-]*\$\{[^`]*)`")
ASKED = re.compile(r"(?<![\w.])(?:t|has)\(\s*(?:\"([^\"]+)\"|`([^`]+)`)")
HOLE = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
FORMS = {"zero", "one", "two", "few", "many", "other"}


def paths() -> set[str]:
    """The path of every text of texts.js; that of a text with several forms once."""
    source = (FOLDER / "texts.js").read_text(encoding="utf-8")
    found: set[str] = set()
    inside: list[str] = []
    key = ""
    for token in TOKEN.finditer(source[source.index("texts = {") + len("texts = ") :]):
        text, word, sign = token["text"], token["word"], token["sign"]
        if sign == "{":
            inside.append(key)
            key = ""
        elif sign == "}":
            inside.pop()
            key = ""
            if not inside:
                break
        elif sign is None and not key:
            key = word or (text or "").strip('"')
        elif text and key:
            path = [*inside[1:], key] if key not in FORMS else inside[1:]
            found.add(".".join(path))
            key = ""
    return found


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(FOLDER.rglob("*.js")):
        if path.name != "texts.js":
            yield path.relative_to(FOLDER), path.read_text(encoding="utf-8")


def pattern(template: str) -> re.Pattern[str]:
    """What the text of a template literal may be."""
    return re.compile(r"[\w.-]+".join(map(re.escape, HOLE.split(template))))


def test_the_texts_are_read_as_they_are_written() -> None:
    found = paths()
    assert {"common.add", "common.tokens", "shell.skip"} <= found
    assert not {path for path in found if path.rsplit(".", 1)[-1] in FORMS}


def test_every_text_that_is_asked_for_is_there() -> None:
    known = paths()
    missing: list[str] = []
    for name, source in modules():
        for literal, template in ASKED.findall(source):
            if literal.endswith("."):
                fits = any(path.startswith(literal) for path in known)
            elif literal:
                fits = literal in known
            else:
                # One with another inside it can't be told by such simple means.
                nested = template.count("{") != template.count("}")
                fits = nested or any(map(pattern(template).fullmatch, known))
            if not fits:
                missing.append(f"{name}: {literal or template}")
    assert missing == []


def test_every_text_is_asked_for() -> None:
    unused = paths()
    for _, source in modules():
        for literal, template in LITERAL.findall(source):
            if literal.endswith("."):
                unused = {path for path in unused if not path.startswith(literal)}
            elif literal:
                unused.discard(literal)
            elif "." in HOLE.sub("", template):
                unused = {path for path in unused if not pattern(template).fullmatch(path)}
    assert sorted(unused) == []
