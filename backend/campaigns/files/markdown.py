"""Markdown as people keep a world in: front matter, sections, and lists under headings.

Blocks alone are read; what stands inside a line stays as it was written, but for `[[links]]`, which
`unlinked` takes out. A text that a list can't show as it is stands there as a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import yaml

from backend.campaigns.files.vault import LINKED, UNTITLED
from backend.characters.cards.text import parse_yaml
from backend.characters.errors import CardError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_FENCE = "---"
_BLOCKS = ("heading", "lheading", "list", "fence", "hr")
_LINK = re.compile(r"\[\[([^\[\]\n]{1,500})\]\]")
_OPENING = frozenset("('‘’“«¿¡$€£")  # noqa: RUF001  # quotes of every kind
_NUMBERED = re.compile(r"[0-9]{1,9}[.)]")
_NUMBER_LIKE = re.compile(r"[-+.0-9]")


@dataclass(frozen=True, slots=True)
class Document:
    """A file: its front matter, and what follows. `broken` says why the former can't be read."""

    meta: dict[str, Any]
    body: str
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the first or second level, and the text up to the next one, as it is written."""

    title: str
    level: int
    text: str


@dataclass(slots=True)
class Bullet:
    """An entry of a list, or a paragraph, under its heading; `details` are the entries in it."""

    group: str
    text: str
    details: list[str] = field(default_factory=list[str])
    is_listed: bool = True


def read_document(text: str) -> Document:
    """A file's text as front matter and body. Raises `CardLimitError` for YAML beyond its limits.

    Front matter that can't be read is part of the body.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return Document({}, text.strip())
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return Document({}, text.strip(), "it has no end")
    try:
        meta: Any = parse_yaml("\n".join(lines[1:end]).encode())
    except CardError as error:
        if error.extra:
            raise
        return Document({}, text.strip(), error.detail)
    body = "\n".join(lines[end + 1 :]).strip()
    if meta is None:
        return Document({}, body)
    if not isinstance(meta, dict):
        return Document({}, text.strip(), "it is no mapping")
    return Document(cast("dict[str, Any]", meta), body)


def sections(body: str) -> list[Section]:
    """What a body consists of: first what stands before its first heading."""
    lines = body.split("\n")
    found: list[Section] = []
    title, level, start = "", 0, 0
    for heading, content in _headings(body):
        if heading.map is None or heading.level or heading.tag not in {"h1", "h2"}:
            continue
        found.append(Section(title, level, "\n".join(lines[start : heading.map[0]]).strip()))
        title, level, start = content.strip(), int(heading.tag[1]), heading.map[1]
    found.append(Section(title, level, "\n".join(lines[start:]).strip()))
    return found


def bullets(body: str) -> list[Bullet]:
    """All entries of a body's lists, and its paragraphs, each with the heading it stands under."""
    found: list[Bullet] = []
    group, depth = "", 0
    tokens = _tokens(body)
    for at, token in enumerate(tokens):
        if token.type == "list_item_open":
            depth += 1
            if depth == 1:
                found.append(Bullet(group, ""))
        elif token.type == "list_item_close":
            depth -= 1
        elif token.type in {"inline", "fence"}:
            text = token.content.strip()
            if tokens[at - 1].type == "heading_open" and not depth:
                group = text
            elif not depth:
                found.append(Bullet(group, text, is_listed=False))
            elif depth == 1 and not found[-1].details:
                found[-1].text = f"{found[-1].text}\n{text}" if found[-1].text else text
            else:
                found[-1].details.append(text)
    return [bullet for bullet in found if bullet.text]


def unlinked(text: str, follow: Callable[[str], object] = lambda _: None) -> str:
    """A text in which every `[[target|words]]` is its words; `follow` is told the targets."""

    def words(link: re.Match[str]) -> str:
        target, _, said = link[1].partition("|")
        follow(_target(target))
        return (said or target).strip()

    return _LINK.sub(words, text)


def link_targets(text: str) -> list[str]:
    """What the links of a text name, in order."""
    return [_target(link[1]) for link in _LINK.finditer(text)]


def link_target(text: str) -> str:
    """What a reference names, whether it is written as a link or as a name."""
    link = _LINK.search(text)
    return _target(link[1] if link else text)


def _target(link: str) -> str:
    return link.partition("|")[0].partition("#")[0].strip()


def decoded(text: str, follow: Callable[[str], object] = lambda _: None) -> str:
    """A text out of a list: a JSON string as what it says, else without links."""
    if text.startswith('"') and text.endswith('"'):
        try:
            value: Any = json.loads(text)
        except ValueError:
            pass
        else:
            if isinstance(value, str):
                return value
    return unlinked(text, follow)


def encoded(text: str) -> str:
    """A text so that a list can hold it on one line, and `decoded` gives it back."""
    return text if _is_plain(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def _is_plain(text: str) -> bool:
    return (
        text == " ".join(text.split())
        and text.isprintable()
        and (text[:1].isalnum() or text[:1] in _OPENING)
        and "[[" not in text
        and _NUMBERED.match(text) is None
    )


def titled(text: str) -> tuple[str, str]:
    """An entry as its title and what it says: `**Title**: text`, else `Title: text`."""
    if text.startswith("**"):
        title, _, rest = text[2:].partition("**")
        title, rest = title.strip(), rest.strip()
        return title.removesuffix(":").strip(), rest.removeprefix(":").strip()
    title, colon, rest = text.partition(": ")
    return (title.strip(), rest.strip()) if colon else (text.strip(), "")


def entry(title: str, text: str, details: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of an entry with a title, which `titled` and `decoded` read back."""
    more = list(details)
    if not _is_plain(title) or "*" in title or title.endswith(":") or title == UNTITLED:
        more[:0] = [("title", title)] if title else []
        title = UNTITLED
    if text and not _is_plain(text):
        more.insert(0, ("text", text))
        text = ""
    return [f"- **{title}**: {text}" if text else f"- **{title}**", *detail_lines(more)]


def plain_entry(text: str, details: Iterable[tuple[str, str]]) -> list[str]:
    """The lines of an entry without a title."""
    return [f"- {encoded(text)}", *detail_lines(details)]


def detail_lines(details: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The lines of an entry's details: name and value."""
    for name, value in details:
        yield f"  - {name}: {value if name in LINKED else encoded(value)}"


def document(meta: dict[str, Any], body: str) -> bytes:
    """A file of front matter and body."""
    head = yaml.dump(meta, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=1_000_000_000)
    return (f"{_FENCE}\n{head}{_FENCE}\n" + (f"{body}\n" if body else "")).encode()


def outline(title: str, groups: Iterable[tuple[str, Sequence[str]]]) -> bytes:
    """A file of lists, each under its heading; one without a heading comes first."""
    lines = [f"# {title}"]
    for group, entries in groups:
        lines += ["", f"## {group}", *entries] if group else ["", *entries]
    return ("\n".join(lines) + "\n").encode()


class _Dumper(yaml.SafeDumper):
    """Writes YAML 1.1 that means the same in version 1.2."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    needs_quotes = "\n" in text or not text.isprintable() or _NUMBER_LIKE.match(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if needs_quotes else None)


_Dumper.add_representer(str, _write_text)


def _tokens(body: str) -> list[Token]:
    return _parser().parse(body)


@cache  # takes longer to make than a short file to read
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - seldom needed, and slow to import

    parser = MarkdownIt("zero").enable(list(_BLOCKS))
    parser.core.ruler.disable(["inline"])
    return parser


def _headings(body: str) -> Iterator[tuple[Token, str]]:
    tokens = _tokens(body)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            yield token, following.content
