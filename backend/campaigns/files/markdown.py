"""Reads and writes Markdown with front matter: sections, lists and tables under headings.

Only blocks are parsed. The text of a line is unchanged, except that `remove_links` replaces
`[[links]]`. In a list, a text that Markdown would change becomes a JSON string.
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

from backend.characters.cards.text import parse_yaml
from backend.characters.errors import CardError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_FENCE = "---"
_BLOCKS = ("heading", "lheading", "list", "fence", "hr")
MAX_CELLS = 100_000
"""Maximum number of cells in one text, because a cell takes 2 KB of memory.

With more, its tables are read as paragraphs.
"""

MAX_HEADING = 500
"""Maximum length of a heading. A longer one is a paragraph, because entries repeat headings."""

_LEVELS = 2
"""Levels of headings that always begin a section."""

NEXT_STEP = re.compile(r"(?:\s(?:→|->)\s|(?<=[.!?;])\s)(?=\*{0,2}next(?: steps?)?:)", re.IGNORECASE)
"""The gap before a next step that is on the same line as its thread."""

_LINK = re.compile(r"\[\[([^\[\]\n]{1,500})\]\]")
_OPENING = frozenset("('‘’“«¿¡$€£")  # noqa: RUF001  # quotes of every kind
_NUMBERED = re.compile(r"[0-9]{1,9}[.)]")
_NUMBER_LIKE = re.compile(r"[-+.0-9]")


@dataclass(frozen=True, slots=True)
class Document:
    """A file: its front matter and its body. `broken` is the error of invalid front matter."""

    meta: dict[str, Any]
    body: str
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text up to the next one. Text without a heading has level 0."""

    title: str
    level: int
    text: str


Cells = Sequence[tuple[str, str]]
"""A row of a table: pairs of a header and a cell that is not empty."""


@dataclass(slots=True)
class Bullet:
    """An entry of a list with its inner entries, a paragraph, or a row of a table."""

    text: str
    details: list[str] = field(default_factory=list[str])
    is_listed: bool = True
    cells: Cells = ()


@dataclass(frozen=True, slots=True)
class HeadingGroup:
    """The lists, paragraphs and rows under a heading, the last of `headings`."""

    headings: tuple[str, ...]
    bullets: list[Bullet] = field(default_factory=list[Bullet])


def read_document(text: str) -> Document:
    """Split a text into front matter and body. Raises `CardLimitError` if the YAML is too large.

    Invalid front matter is part of the body.
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


def split_sections(body: str, is_field: Callable[[str], bool]) -> list[Section]:
    """Split a body at headings of the first two levels, and at headings that name a field.

    The text before the first heading comes first. A field ends at the next heading of its level.
    """
    lines = body.split("\n")
    found: list[Section] = []
    title, level, start = "", 0, 0
    for heading, content in _list_headings(body):
        if heading.map is None or heading.level:
            continue
        depth = int(heading.tag[1])
        if depth > max(level, _LEVELS) and not is_field(content.strip()):
            continue
        found.append(Section(title, level, "\n".join(lines[start : heading.map[0]]).strip()))
        title, level, start = content.strip(), depth, heading.map[1]
    found.append(Section(title, level, "\n".join(lines[start:]).strip()))
    return found


def read_groups(body: str) -> list[HeadingGroup]:
    """Return the lists, paragraphs and tables of a body by heading, also for empty headings."""
    found: list[tuple[tuple[str, ...], list[_BulletDraft]]] = [((), [])]
    path: list[tuple[int, str]] = []
    depth = at = 0
    tokens = _parse(body)
    while at < len(tokens):
        token, blocks = tokens[at], found[-1][1]
        if token.type == "table_open":
            rows, at = _read_table(tokens, at)
            for cells in rows:
                _add_text(blocks, _render_row(cells), depth, cells)
        elif token.type == "list_item_open":
            depth += 1
            if depth == 1:
                blocks.append(_BulletDraft())
        elif token.type == "list_item_close":
            depth -= 1
        elif token.type == "heading_open" and not depth and _is_heading(tokens[at + 1]):
            level, title = int(token.tag[1]), tokens[at + 1].content.strip()
            path = [*(each for each in path if each[0] < level), (level, title)]
            found.append((tuple(title for _, title in path), []))
            at += 1
        elif token.type in {"inline", "fence"}:
            _add_text(blocks, token.content.strip(), depth)
        at += 1
    return [
        HeadingGroup(headings, [block.finish() for block in blocks if block.texts or block.details])
        for headings, blocks in found
    ]


@dataclass(slots=True)
class _BulletDraft:
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


def _add_text(blocks: list[_BulletDraft], text: str, depth: int, cells: Cells = ()) -> None:
    """Add a text, which is part of the last entry if it is inside a list."""
    if not text:
        return
    if not depth:
        blocks.append(_BulletDraft([text], is_listed=bool(cells), cells=cells))
    elif depth == 1 and not blocks[-1].details:
        blocks[-1].texts.append(text)
    else:
        blocks[-1].details.append(text)


def _read_table(tokens: Sequence[Token], at: int) -> tuple[list[Cells], int]:
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


def _render_row(cells: Cells) -> str:
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells)


def remove_links(text: str, follow: Callable[[str], object] = lambda _: None) -> str:
    """Replace every `[[target|words]]` by its words. `follow` receives the targets."""

    def words(link: re.Match[str]) -> str:
        target, _, label = link[1].partition("|")
        follow(_clean_target(target))
        return (label or target).strip()

    return _LINK.sub(words, text)


def list_link_targets(text: str) -> list[str]:
    return [_clean_target(link[1]) for link in _LINK.finditer(text)]


def get_link_target(text: str) -> str:
    """Return the target of a text that is a link, or else a name."""
    link = _LINK.search(text)
    return _clean_target(link[1] if link else text)


def _clean_target(link: str) -> str:
    return link.partition("|")[0].partition("#")[0].strip()


def decode_text(text: str, follow: Callable[[str], object] = lambda _: None) -> str:
    """Return the text of a list entry: the value of a JSON string, or the text without links."""
    if text.startswith('"') and text.endswith('"'):
        try:
            value: Any = json.loads(text)
        except ValueError:
            pass
        else:
            if isinstance(value, str):
                return value
    return remove_links(text, follow)


def encode_text(text: str) -> str:
    """Return a text on one line of a list, which `decode_text` can read."""
    return text if is_plain(text) else json.dumps(text, ensure_ascii=not text.isprintable())


def is_plain(text: str) -> bool:
    return (
        text == " ".join(text.split())
        and text.isprintable()
        and (text[:1].isalnum() or text[:1] in _OPENING)
        and "[[" not in text
        and NEXT_STEP.search(text) is None
        and _NUMBERED.match(text) is None
    )


def split_title(text: str) -> tuple[str, str]:
    """Return the title and the text of `**Title**: text` or `Title: text`."""
    if text.startswith("**"):
        title, _, rest = text[2:].partition("**")
        title, rest = title.strip(), rest.strip()
        return title.removesuffix(":").strip(), rest.removeprefix(":").strip()
    title, colon, rest = text.partition(": ")
    return (title.strip(), rest.strip()) if colon else (text.strip(), "")


def render_document(meta: dict[str, Any], body: str) -> bytes:
    head = yaml.dump(meta, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=1_000_000_000)
    return (f"{_FENCE}\n{head}{_FENCE}\n" + (f"{body}\n" if body else "")).encode()


def render_outline(title: str, groups: Iterable[tuple[str, Sequence[str]]]) -> bytes:
    """Return a file of lists with their headings. An empty heading is omitted."""
    lines = [f"# {title}"]
    for group, entries in groups:
        lines += ["", f"## {group}", *entries] if group else ["", *entries]
    return ("\n".join(lines) + "\n").encode()


class _Dumper(yaml.SafeDumper):
    """Writes YAML that has the same meaning in versions 1.1 and 1.2."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    needs_quotes = "\n" in text or not text.isprintable() or _NUMBER_LIKE.match(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, '"' if needs_quotes else None)


_Dumper.add_representer(str, _write_text)


def _parse(body: str) -> list[Token]:
    return _make_parser(has_tables=_count_cells(body) <= MAX_CELLS).parse(body)


@cache  # because making a parser takes longer than reading a short file
def _make_parser(*, has_tables: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - seldom needed, and slow to import

    parser = MarkdownIt("zero").enable(list(_BLOCKS))
    if has_tables:
        parser.enable("table")
    parser.core.ruler.disable(["inline"])
    return parser


def _list_headings(body: str) -> Iterator[tuple[Token, str]]:
    tokens = _parse(body)
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
