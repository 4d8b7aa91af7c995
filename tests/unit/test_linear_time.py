"""Work over a user's text takes time in proportion to the text.

A regular expression holds Python's lock while it runs, so a slow one stops all threads.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest

import backend
from backend.campaigns.files.vault_reader import read_vault
from backend.campaigns.glossary.coinages import Familiar, find_coined
from backend.campaigns.glossary.tags import find_tags
from backend.campaigns.names.roster import Member, Roster
from backend.chats.drafts import opens_scene
from backend.enrichment.agent.duplicates import find_terms
from backend.enrichment.cleaning import clean_paragraphs
from backend.generation.adapters.demo import choose_chronicle_calls
from backend.generation.adapters.openai.mapping import CallFragments
from backend.generation.failures.causes import RULES
from backend.generation.model import Prompt, PromptMessage, Tool, ToolCall
from backend.generation.thoughts import KNOWN_REPLY_TAGS
from backend.generation.tools.calls import assign_distinct_ids, read_calls
from backend.generation.tools.written_calls import CallReader, FencedReader, StructuredReader
from backend.lorebooks.activation.compiled import split_decorators
from backend.memory.indexing.documents import split_into_chunks
from backend.memory.search.query import compile_name, list_languages, load_words, remove_names
from tests.support.regex_finder import (
    Found,
    find_held_patterns,
    find_inline_patterns,
    page_patterns,
    python_patterns,
)
from tests.support.regex_growth import EVERY_START, find_attack

pytestmark = pytest.mark.slow

PACKAGES = sorted(
    path.stem
    for path in Path(backend.__file__).parent.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
)
MADE_AT_RUN_TIME: Mapping[str, Sequence[re.Pattern[str]]] = {
    "backend.generation.thoughts.__init__": [KNOWN_REPLY_TAGS.text.any],
    "backend.memory.search.query.compile_name": [compile_name("Ann Bo")],
    "backend.generation.failures.causes._make_rule": [rule.words for rule in RULES],
    "backend.generation.failures.provider_faults.remove_keys": [
        re.compile(r"(?<!\w)sk\-1(?!\w)", re.IGNORECASE)
    ],
}
"""Patterns that the source does not show, with examples of each."""

ONLY_MATCHED = re.compile(r"backend\.characters\.cards\.text:_CORE_SCHEMA\b.*")
"""PyYAML calls `match` on these."""

TRUSTED = {"backend.web.controller:_LEFT_COMMENTS"}
"""Run over files of our own, once, when the server starts."""


def check(found: Found) -> None:
    methods = {"match"} if ONLY_MATCHED.fullmatch(found.where) else found.methods
    for method in sorted(methods):
        attack = find_attack(found.pattern, method=method)
        assert attack is None, f"{found.where} {found.pattern.pattern!r}: {attack}"


def distinct(found: Iterable[Found]) -> list[Found]:
    """Drop patterns that differ only in their place."""
    return list(
        {(each.pattern.pattern, each.pattern.flags, each.methods): each for each in found}.values()
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_the_regexes_of_a_package_take_linear_time(package: str) -> None:
    found, _ = python_patterns()
    here = re.compile(rf"backend\.{package}\b")
    for each in distinct(found):
        if here.match(each.where) and each.where not in TRUSTED:
            check(each)


@pytest.mark.parametrize("language", list_languages())
def test_words_of_times_and_questions_are_found_in_linear_time(language: str) -> None:
    words = load_words(language)
    for pattern in {*words.says_nothing, *words.times, words.spans}:
        check(Found(f"query_words.toml, {language}", pattern, frozenset((EVERY_START,))))


def test_regexes_that_are_made_at_run_time_are_known_and_take_linear_time() -> None:
    _, unknown = python_patterns()
    assert unknown == MADE_AT_RUN_TIME.keys()
    for where, patterns in MADE_AT_RUN_TIME.items():
        for pattern in patterns:
            check(Found(where, pattern, frozenset((EVERY_START,))))


def test_the_regexes_of_the_page_take_linear_time() -> None:
    found = page_patterns()
    assert len(found) > 40, "the scanner reads all scripts"
    for each in distinct(found):
        check(each)


SUPERLINEAR = {
    "signs and blanks": (
        r"\s*(?:[*_~=\-–—#•·]\s*){3,}\s*(?:\n|$)|\s*#{0,6}\s*[*_]*(?:chapter|scene)\s+\w+",
        "match",
    ),
    "a value and blanks after it": (r"(@{2,3})([A-Za-z_]+)(?:[ \t]+(.*?))?[ \t]*$", "match"),
    "blanks that may be parted": (r"<(?=\s*/?\s*(?:memory|lore)\b)", EVERY_START),
    "begun at each place": (r"\s+(?=[?!.,;:])", EVERY_START),
    "begun by a text that may go on": (r"<!--.*?-->", EVERY_START),
    "possessive, and begun at each place": (r"a++b", "search"),
    "names of names": (r"\b([A-Z][\w-]+)(?:, | is )an? [a-z]+", "search"),
    "quotes": (r'"(.*?)"(?!\w)', EVERY_START),
    "exponential": (r"(a+)+$", "match"),
    "exponential, by alternatives": (r"(?:a|a)*b", "match"),
}
LINEAR = {
    "possessive": (r"(@{2,3}+)([A-Za-z_]++)(?:[ \t]++(.*+))?+", "fullmatch"),
    "atomic": (r"(?>a*)b", "match"),
    "bounded": (r"\b([A-Z][\w-]{1,40})(?:, | is )an? [a-z]", "search"),
    "parted": (r"\w+(?:['’]\w+)*", EVERY_START),
    "anchored": (r"^\s+x", "search"),
}


@pytest.mark.parametrize(("source", "method"), SUPERLINEAR.values(), ids=SUPERLINEAR)
def test_the_checker_finds(source: str, method: str) -> None:
    assert find_attack(re.compile(source, re.IGNORECASE), method=method) is not None


@pytest.mark.parametrize(("source", "method"), LINEAR.values(), ids=LINEAR)
def test_the_checker_leaves_alone(source: str, method: str) -> None:
    assert find_attack(re.compile(source), method=method) is None


def test_the_finder_looks_into_lists_classes_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(
        "import re\n"
        "WORD = 'a'\n"
        "TABLE = {'x': [(re.compile('in a table'), 1)]}\n"
        "class Reader:\n"
        "    mark = re.compile('in a class')\n"
        "def found(name, pattern):\n"
        "    re.search(rf'{WORD} in {re.escape(name)}', name)\n"
        "    return re.compile(pattern)\n"
    )
    module = ModuleType("example")
    module.__file__ = str(file)
    exec(compile(file.read_text(), file, "exec"), vars(module))  # noqa: S102  # the lines above

    held = {pattern.pattern for _, pattern in find_held_patterns(module)}
    inline = {pattern and pattern.pattern for _, _, pattern in find_inline_patterns(module)}

    assert held == {"in a table", "in a class"}
    assert inline == {"a in Ann Bo", None}


def call_demo(text: str) -> object:
    lines = f"<new_lines>\n#1 Marlena: {text}\n</new_lines>"
    return choose_chronicle_calls(
        Prompt([PromptMessage("user", lines)]), [Tool("create_chronicle_event", "", {})]
    )


def with_a_long_line(text: str) -> str:
    return "word " * 250 + text


def find_terms_of_reply(text: str) -> object:
    familiar = Familiar(names=["Marlena"], terms=(), texts=["Of the sea. "], is_common=str.islower)
    return find_coined(text, familiar)


def resolve_namesakes(text: str) -> object:
    """Resolve a mention among as many members of one name as the text has lines."""
    names = text.splitlines()
    members = [Member(uuid4(), "npc", (name,), "", None, "public") for name in names]
    return Roster(members).resolve(names[0] * 12, "npc")


def read_call_fragments(text: str) -> object:
    """Read a call whose arguments come two characters at a time, each with the name."""
    choose_chronicle_calls = CallFragments(("roll",))
    for at in range(0, len(text), 2):
        function = {"name": "roll", "arguments": text[at : at + 2]}
        choose_chronicle_calls.add({"tool_calls": [{"index": 0, "function": function}]})
    return choose_chronicle_calls.finish()


def read_reply(reader: Callable[[], CallReader], size: int, text: str) -> object:
    """Read a reply in pieces of `size` characters."""
    made = reader()
    pieces = [list(made.feed(text[at : at + size])) for at in range(0, len(text), size)]
    return pieces, list(made.close())


def repeat(part: str, begin: str = "") -> Callable[[int], str]:
    return lambda n: begin + part * max(1, n // len(part))


def read_in_vault(path: str) -> Callable[[str], object]:
    return lambda text: read_vault({path: text.encode()}, "Vault")


def read_with_namesakes(text: str) -> object:
    """Read a vault with as many entities of one name as the text has lines."""
    namesakes = {f"npcs/{number}/a.md": b"" for number in range(text.count("\n"))}
    return read_vault({**namesakes, "canon/facts.md": text.encode()}, "Vault")


COINED = [
    "Aa Bb ", '"', "“", "'a", "Veil ", "VECTRA ", "a-", "aB", "x", "a *B", "Order of the ", "「",
]  # fmt: skip
TAGGED = ["you take the ", "“", "a ", "you ", "Name is ", "Captain ", "you give ", ",", "-a"]
ARGUMENTS = ["{'", "'\\", "{'\\'", "[", "{}", '"\\', "{//", "{/", "x{,", '{"a": \'', "[1]"]
REPLIES: list[tuple[Callable[[], CallReader], str, str]] = [
    *((StructuredReader, '{"narration": "', part) for part in ("\\u0041", "\ud83d", "word ")),
    *((StructuredReader, begin, part) for begin, part in (('{"', "\\n"), ("{", "["), ("", " "))),
    *((FencedReader, "", part) for part in ("`", "```tools\n```", "```json\n{}\n```\n", "``` ")),
    *((FencedReader, "```tools", part) for part in ("\n``", "\n[{'", "\n{'\\'")),
]
WORK: dict[str, tuple[Callable[[str], object], Callable[[int], str]]] = {
    "a scene's mark": (opens_scene, lambda n: " " * n + "a"),
    "a scene's line of stars": (opens_scene, lambda n: "* " * (n // 2) + "a"),
    "a decorator's value": (split_decorators, lambda n: "@@a b" + " " * n + "c"),
    "decorators": (split_decorators, lambda n: "@@a b\n" * (n // 6)),
    "a decorator's keys": (split_decorators, lambda n: "@@additional_keys" + " a," * (n // 3)),
    "a chunk of blank lines": (split_into_chunks, lambda n: with_a_long_line("\n" * 4 * n)),
    "chunks of words": (split_into_chunks, lambda n: "word " * (n // 5)),
    "chunks without spaces": (split_into_chunks, lambda n: "中" * n),
    "a question": (lambda text: remove_names(text, ["Ann"]), lambda n: " " * n + "."),
    "the demo's names": (call_demo, lambda n: "A-" * (n // 2)),
    "the terms of an event": (find_terms, lambda n: "to " + "Ann's " * (n // 6)),
    "what a model wrote": (clean_paragraphs, lambda n: "< {{@@\n" * (n // 8)),
    "links in a sentence": (read_in_vault("npcs/a.md"), lambda n: "[[a]] " * (n // 6)),
    "links in a list": (read_in_vault("canon/facts.md"), lambda n: "- " + "[[a]] " * (n // 6)),
    "headings in a heading": (
        read_in_vault("canon/facts.md"),
        lambda n: "## a\n" + "### b\n" * (n // 6),
    ),
    "headings in a title": (
        read_in_vault("canon/open-threads.md"),
        lambda n: "## a\n- x\n" + "### b\n- x\n" * (n // 10),
    ),
    "headings in a long heading": (
        read_in_vault("canon/facts.md"),
        lambda n: "# " + "a " * (n // 4) + "\n## b\n" * (n // 12),
    ),
    "entries below a long heading": (
        read_in_vault("notes.md"),
        lambda n: "# " + "a " * (n // 4) + "\n" + "- x\n" * (n // 8),
    ),
    "rows below a long cell": (
        read_in_vault("canon/facts.md"),
        lambda n: "|" + "a " * (n // 4) + "|\n|-|\n" + "|x|\n" * (n // 8),
    ),
    "rows below many cells": (
        read_in_vault("canon/facts.md"),
        lambda n: "|a" * (n // 8) + "\n" + "|-" * (n // 8) + "\n" + "x\n" * (n // 4),
    ),
    "namesakes": (read_with_namesakes, lambda n: "- [[a]] [[a]] [[a]] [[a]]\n" * (n // 26)),
    "namesakes of a mention": (resolve_namesakes, repeat("a b c d e f g h \n")),
    "fragments of a call": (read_call_fragments, lambda n: '{"why": "' + "x" * n + '"}'),
    "calls with one id": (
        lambda text: assign_distinct_ids([ToolCall("a", "roll", {}) for _ in text.split()]),
        repeat("call "),
    ),
    **{f"coined words in {part!r}": (find_terms_of_reply, repeat(part)) for part in COINED},
    **{f"tags in {part!r}": (find_tags, repeat(part)) for part in TAGGED},
    **{f"arguments {part!r}": (partial(read_calls, "roll"), repeat(part)) for part in ARGUMENTS},
    **{
        f"a reply {begin!r}, {part!r} by {size}": (
            partial(read_reply, reader, size),
            repeat(part, begin),
        )
        for reader, begin, part in REPLIES
        for size in (3, 64_000)
    },
}


@pytest.mark.parametrize(("work", "text"), WORK.values(), ids=WORK)
def test_four_times_the_text_takes_no_more_than_some_four_times_the_time(
    work: Callable[[str], object], text: Callable[[int], str]
) -> None:
    """Quadratic work takes 16 times as long, and some tenths of a second."""
    work(text(100))  # builds lazy values
    before = seconds(work, text(250))
    for length in (1_000, 4_000, 16_000, 64_000):
        most = max(9 * before, 0.5)
        before = seconds(work, text(length))
        if before > most:  # perhaps it was disturbed
            before = seconds(work, text(length))
        assert before < most, f"{before:.2f} s for {length:,} characters"


def seconds(work: Callable[[str], object], text: str) -> float:
    """Return the processor time of a run.

    The garbage collector is off, because it looks at the objects of the whole process.
    """
    gc.disable()
    try:
        start = time.thread_time()
        work(text)
        return time.thread_time() - start
    finally:
        gc.enable()
