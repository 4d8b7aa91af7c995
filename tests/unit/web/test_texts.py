"""The texts of the page: modules ask only for existing texts, and every text is used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from backend.openai_api.models import RequestKind, RequestReason, RuledKind
from backend.openai_api.requests import CorrectionOutcome
from backend.quotas.limits import QUOTAS
from backend.web.controller import FOLDER

LITERAL = re.compile(r"\"([\w.-]+)\"|`([\w.-]*\$\{[^`]*)`")
ASKED = re.compile(r"(?<![\w.])(?:t|has)\(\s*(?:\"([^\"]+)\"|`([^`]+)`)")
HOLE = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
COUNTED = re.compile(
    r"\{(?:count|created|messages|calls|needed|sent|most|total|budget|tokens\w*)\}"
    r" (?:more )?[a-z]{3,}s\b"
)
ALWAYS_SEVERAL = {
    # Shown for two or more, or figures that are never one.
    "campaign.measures.most", "chat.notices.prompt_cut", "chat.use", "context.of",
    "context.overflow", "lore.of_budget", "memory.merge_text", "memory.today",
    "message.branches", "message.versions", "models.window",
}  # fmt: skip
FORMS = {"zero", "one", "two", "few", "many", "other"}


def paths(texts: dict[str, Any], above: str = "") -> set[str]:
    """The path of every text. A text with several forms has one path."""
    found: set[str] = set()
    for key, value in texts.items():
        if isinstance(value, str):
            found.add(above.rstrip(".") if key in FORMS else above + key)
        else:
            found |= paths(value, f"{above}{key}.")
    return found


def all_texts(texts: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text with its path, each form of a text by itself."""
    for key, value in texts.items():
        if isinstance(value, str):
            yield above + key, value
        else:
            yield from all_texts(value, f"{above}{key}.")


def known_paths() -> set[str]:
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    assert texts.pop("language") == "en"
    return paths(texts)


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(FOLDER.rglob("*.js")):
        yield path.relative_to(FOLDER), path.read_text(encoding="utf-8")


def pattern(template: str) -> re.Pattern[str]:
    """A pattern of the texts that a template literal can produce."""
    return re.compile(r"[\w.-]+".join(map(re.escape, HOLE.split(template))))


def test_every_text_that_is_asked_for_is_there() -> None:
    known = known_paths()
    missing: list[str] = []
    for name, source in modules():
        for literal, template in ASKED.findall(source):
            if literal.endswith("."):
                fits = any(path.startswith(literal) for path in known)
            elif literal:
                fits = literal in known
            else:
                # A template inside another one is too complex for this pattern.
                nested = template.count("{") != template.count("}")
                fits = nested or any(map(pattern(template).fullmatch, known))
            if not fits:
                missing.append(f"{name}: {literal or template}")
    assert missing == []


def test_every_text_is_asked_for() -> None:
    unused = known_paths()
    for _, source in modules():
        for literal, template in LITERAL.findall(source):
            if literal.endswith("."):
                unused = {path for path in unused if not path.startswith(literal)}
            elif literal:
                unused.discard(literal)
            elif "." in HOLE.sub("", template):
                unused = {path for path in unused if not pattern(template).fullmatch(path)}
    assert sorted(unused) == []


def test_every_quota_has_a_name() -> None:
    assert {f"account.quotas.{quota.name}" for quota in QUOTAS} <= known_paths()


def test_every_decision_about_a_request_has_a_text() -> None:
    decisions = {
        "kinds": RequestKind,
        "reasons": RequestReason,
        "rules": RuledKind,
        "outcomes": CorrectionOutcome,
    }
    named = {
        f"clients.{name}.{each}" for name, kind in decisions.items() for each in get_args(kind)
    }
    assert named <= known_paths()


def test_a_text_that_counts_things_has_a_form_for_one() -> None:
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    plain = {path: text for path, text in all_texts(texts) if path.rpartition(".")[2] not in FORMS}
    counting = {path for path, text in plain.items() if COUNTED.search(text)}
    assert sorted(counting - ALWAYS_SEVERAL) == []


def test_no_text_has_two_spaces_in_a_row_or_at_an_end() -> None:
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    odd = [path for path, text in all_texts(texts) if "  " in text or text != text.strip()]
    assert odd == []
