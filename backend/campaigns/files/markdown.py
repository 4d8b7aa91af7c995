"""Markdown as people keep a world in: front matter, sections, lists and tables under headings.

Only blocks are read. The text of a line stays as it was written, except for `[[links]]`, which
`unlinked` removes. A text that a list cannot show as it is becomes a JSON string there.
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
MAX_CELLS = 100_000
"""Cells in one text. With more, its tables stay paragraphs: a cell takes 2 KB of memory."""

MAX_HEADING = 500
"""Characters of a heading. A longer one is a paragraph: each entry under it would repeat it."""

_LEVELS = 2
"""Levels of headings that split a text in any case."""

NEXT_STEP = re.compile(r"(?:\s(?:→|->)\s|(?<=[.!?;])\s)(?=\*{0,2}next(?: steps?)?:)", re.IGNORECASE)
"""The gap before a next step that is on the same line as its thread."""

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
    """A heading, and the text up to the next one, as it is written. The level of none is 0."""

    title: str
    level: int
    text: str


Cells = Sequence[tuple[str, str]]
"""A row of a table: each cell that says something, after the header of its column."""


@dataclass(slots=True)
class Bullet:
    """An entry of a list with the entries in it, a paragraph, or a row of a table.

    The text of a row has all its cells.
    """

    text: str
    details: list[str] = field(default_factory=list[str])
    is_listed: bool = True
    cells: Cells = ()


@dataclass(frozen=True, slots=True)
class Group:
    """The lists, paragraphs and rows under a heading. `headings` are it and those around it."""

    headings: tuple[str, ...]
    bullets: list[Bullet] = field(default_factory=list[Bullet])


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


def sections(body: str, is_field: Callable[[str], bool]) -> list[Section]:
    """Split a body at headings of the first two levels, and at headings that name a field.

    The text before the first heading comes first. A field ends at the next heading of its level.
    """
    lines = body.split("\n")
    found: list[Section] = []
    title, level, start = "", 0, 0
    for heading, content in _headings(body):
        if heading.map is None or heading.level:
            continue
        depth = int(heading.tag[1])
        if depth > max(level, _LEVELS) and not is_field(content.strip()):
            continue
        found.append(Section(title, level, "\n".join(lines[start : heading.map[0]]).strip()))
        title, level, start = content.strip(), depth, heading.map[1]
    found.append(Section(title, level, "\n".join(lines[start:]).strip()))
    return found


def groups(body: str) -> list[Group]:
    """Return all lists, paragraphs and tables of a body by their headings, also of empty ones."""
    found: list[tuple[tuple[str, ...], list[_OpenBullet]]] = [((), [])]
    path: list[tuple[int, str]] = []
    depth = at = 0
    tokens = _tokens(body)
    while at < len(tokens):
        token, blocks = tokens[at], found[-1][1]
        if token.type == "table_open":
            rows, at = _table(tokens, at)
            for cells in rows:
                _add(blocks, _row_text(cells), depth, cells)
        elif token.type == "list_item_open":
            depth += 1
            if depth == 1:
                blocks.append(_OpenBullet())
        elif token.type == "list_item_close":
            depth -= 1
        elif token.type == "heading_open" and not depth and _is_heading(tokens[at + 1]):
            level, title = int(token.tag[1]), tokens[at + 1].content.strip()
            path = [*(each for each in path if each[0] < level), (level, title)]
            found.append((tuple(title for _, title in path), []))
            at += 1
        elif token.type in {"inline", "fence"}:
            _add(blocks, token.content.strip(), depth)
        at += 1
    return [
        Group(headings, [block.finish() for block in blocks if block.texts or block.details])
        for headings, blocks in found
    ]


@dataclass(slots=True)
class _OpenBullet:
    """A bullet that is being read."""

    texts: list[str] = field(default_factory=list[str])
    details: list[str] = field(default_factory=list[str])
    is_listed: bool = True
    cells: Cells = ()

    def finish(self) -> Bullet:
        texts, details = self.texts, self.details
        if not texts:
            texts, details = details[:1], details[1:]
        return Bullet("\n".join(texts), details, self.is_listed, self.cells)


def _add(blocks: list[_OpenBullet], text: str, depth: int, cells: Cells = ()) -> None:
    """Add a text, which is part of the last entry if it is inside a list."""
    if not text:
        return
    if not depth:
        blocks.append(_OpenBullet([text], is_listed=bool(cells), cells=cells))
    elif depth == 1 and not blocks[-1].details:
        blocks[-1].texts.append(text)
    else:
        blocks[-1].details.append(text)


def _table(tokens: Sequence[Token], at: int) -> tuple[list[Cells], int]:
    """Return the rows of the table that begins at a token, and where it ends.

    A table without rows is a row of its header.
    """
    header: list[str] = []
    rows: list[list[str]] = []
    while tokens[at].type != "table_close":
        if tokens[at].type == "th_open":
            header.append(tokens[at + 1].content.strip())
        elif tokens[at].type == "tr_open" and header:
            rows.append([])
        elif tokens[at].type == "td_open":
            rows[-1].append(tokens[at + 1].content.strip())
        at += 1
    if any(len(name) > MAX_HEADING for name in header):
        # Each row would repeat it.
        header, rows = [""] * len(header), [header, *rows]
    if not rows:
        return [[("", name) for name in header if name]], at
    # Markdown gives each row as many cells as the header has.
    found = [zip(header, row, strict=True) for row in rows]
    return [[(name, cell) for name, cell in row if cell] for row in found], at


def _row_text(cells: Cells) -> str:
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells)


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
        and NEXT_STEP.search(text) is None
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
    return _parser(has_tables=_count_cells(body) <= MAX_CELLS).parse(body)


@cache  # takes longer to make than a short file to read
def _parser(*, has_tables: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - seldom needed, and slow to import

    parser = MarkdownIt("zero").enable(list(_BLOCKS))
    if has_tables:
        parser.enable("table")
    parser.core.ruler.disable(["inline"])
    return parser


def _headings(body: str) -> Iterator[tuple[Token, str]]:
    tokens = _tokens(body)
    for token, following in pairwise(tokens):
        if token.type == "heading_open" and _is_heading(following):
            yield token, following.content


def _is_heading(content: Token) -> bool:
    return len(content.content) <= MAX_HEADING


def _count_cells(body: str) -> int:
    """Return the cells of a text, as if each part between empty lines were a table.

    Markdown gives each row of a table as many cells as its header has.
    """
    cells = rows = most = 0
    for line in body.split("\n"):
        if line.strip(" \t"):
            rows, most = rows + 1, max(most, line.count("|"))
        else:
            cells, rows, most = cells + rows * most, 0, 0
    return cells + rows * most
