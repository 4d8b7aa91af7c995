"""The public part of a card, which the other characters of a chat know.

It is the appearance, which cards describe in many forms, and the text that the user marks as
public. Everything else is known to the character alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from backend.characters.cards.model import Card

_NOUNS: Final = frozenset(
    {
        *("appearance", "appearances", "look", "looks", "physique", "figure", "build", "body"),
        *("body type", "hair", "hair color", "hair colour", "hair style", "hairstyle", "eyes"),
        *("eye color", "eye colour", "height", "skin", "skin tone", "face", "facial features"),
        *("features", "distinguishing features", "distinguishing marks", "clothes", "clothing"),
        *("outfit", "outfits", "attire", "garb", "wears", "wearing"),
        *("physical description", "visual description", "physical features", "physical traits"),
        *("physical attributes", "physical characteristics"),
        # The same in other languages.
        *("aussehen", "äußeres", "erscheinung", "kleidung", "apparence", "apparence physique"),
        *("apariencia", "aspecto", "aparência", "aspetto", "внешность", "внешний вид", "wygląd"),
        *("uiterlijk", "utseende", "görünüş", "外貌", "外見", "外见", "外觀", "外观", "容姿"),
        *("외모", "외형"),
    }
)
"""Labels of an appearance, in lower case."""

_QUALIFIERS: Final = ("physical ", "outer ", "outward ", "general ", "overall ", "usual ", "main ")

_PRIVATE_WORDS: Final = frozenset(
    {
        *("secret", "secrets", "secretly", "hidden", "private", "true", "truth", "real", "mind"),
        *("personality", "background", "backstory", "history", "past", "story", "goal", "goals"),
        *("motivation", "motivations", "plan", "plans", "likes", "dislikes", "fear", "fears"),
        *("relationship", "relationships", "skill", "skills", "ability", "abilities", "powers"),
        *("occupation", "job", "speech", "quirks", "habits", "behavior", "behaviour", "notes"),
        *("kinks", "sexuality", "weakness", "weaknesses", "thoughts", "feelings", "opinions"),
        *("geheimnis", "persönlichkeit", "secreto", "personalidad", "secret", "personnalité"),
        *("тайна", "секрет", "личность", "характер", "秘密", "性格"),
    }
)
"""Words in labels of texts that a section about the appearance never includes."""

_OWNERS: Final = frozenset({"char", "her", "his", "their", "its", "my"})

_CHAR: Final = re.compile(r"\{\{\s*char\s*\}\}|<(?:char|bot)>", re.IGNORECASE)
_AND: Final = re.compile(r" ?[/&,+] ?| and ")
_TAG: Final = re.compile(r"<(?P<end>/?)(?P<name>[^<>/]{1,60})>")
_MACRO_TAG: Final = re.compile(r"<(?:char|bot|user)>", re.IGNORECASE)
_HEADING: Final = re.compile(r"#{1,6}\s*")
_BULLET: Final = re.compile(r"(?:[-*+•‣–]|\d{1,2}[.)])\s+")  # noqa: RUF001  # dashes of lists
_SEPARATOR: Final = re.compile(r"[:：=]")  # noqa: RUF001  # as Chinese cards write it
_DASH: Final = re.compile(r"([^\W\d_][\w ]{0,30}?)\s+[-–—]\s")  # noqa: RUF001
_SENTENCE: Final = re.compile(r"[.,;|]\s")
_LABEL_CHARACTERS: Final = 60
_INLINE: Final = re.compile(
    r"(?:[.,;|(\[{]\s*|\s(?=[^\W\d_]\w*\s?[:：=]))"  # noqa: RUF001
    r"(?P<label>(?:\{\{|<)?[^\W\d_][\w'’{}<>/& -]{0,40}?)\s?[:：=]"  # noqa: RUF001
)
"""A label within a line: after punctuation, or a single word with a colon."""

_MARKS: Final = " \t*_~`\"'“”[]{}()<>#|.-"
_WRAPPED: Final = ("**", "__", "[", "(", "{")

_ATTRIBUTE: Final = re.compile(r"(?<![\w'’])(?P<label>[^\W\d_][\w ]{0,30}?)\s?=?\s?\(\s?(?=[\"“])")  # noqa: RUF001
_VALUE: Final = re.compile(r'(?:[^()"]|"[^"]*+")*+(?=\))')
_QUOTED: Final = re.compile(r'"([^"]*)"')
_MAX_ATTRIBUTES = 200
_MAX_VALUE = 4_000
"""Limits of attributes in W++ form, so that the time stays linear."""


@dataclass(frozen=True, slots=True)
class PublicCard:
    """The part of a card that prompts of other characters may use.

    Attributes:
        text: The appearance and the text that the user marked. Macros are not expanded.
        scenario: The card's scenario. It is public only if all cards of a chat have the same.
    """

    text: str
    scenario: str = ""


class _Extension(msgspec.Struct):
    public: str = ""


class _Extensions(msgspec.Struct):
    talekeeper: _Extension


def find_public_card(card: Card) -> PublicCard:
    """Return the public part of a card. CPU-bound: linear in the description."""
    parts = [*find_appearance(card), read_public_text(card)]
    return PublicCard("\n".join(part for part in parts if part), card.scenario.strip())


def read_public_text(card: Card) -> str:
    """Return the text that the user marked as public: `extensions.talekeeper.public`."""
    try:
        return msgspec.convert(card.extensions, _Extensions).talekeeper.public.strip()
    except msgspec.ValidationError:  # there is no valid text
        return ""


def find_appearance(card: Card) -> list[str]:
    """Return the lines of the description that describe the appearance.

    Recognised are labels (`Appearance: tall`), sections under a label, heading or tag, attributes
    of W++ (`Hair("red")`) and lists in brackets (`[Alda's looks: tall; Alda's secret: ...]`).
    """
    names = {card.name, card.nickname, *card.name.split()[:1]}
    labels = _AppearanceLabels(frozenset({name.casefold() for name in names if name} | _OWNERS))
    found = [*_find_attributes(card.description, labels), *_find_lines(card.description, labels)]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _AppearanceLabels:
    """Recognises labels. `owners` may precede them: the character's names and pronouns."""

    owners: frozenset[str]

    def find(self, label: str) -> str:
        """Return a label of the appearance without its owner. Empty for another label."""
        name = " ".join(label.replace("’", "'").split())  # noqa: RUF001
        owner, mark, rest = name.partition("'s ")
        if not mark:
            owner, mark, rest = name.partition(" ")
        if mark and owner.casefold() in self.owners:
            name = rest
        parts = _AND.split(name.casefold())
        return name if all(self._is_noun(part) for part in parts) else ""

    def _is_noun(self, name: str) -> bool:
        if name in _NOUNS:
            return True
        return any(
            name.startswith(each) and name.removeprefix(each) in _NOUNS for each in _QUALIFIERS
        )


def _find_attributes(text: str, labels: _AppearanceLabels) -> Iterator[str]:
    """Yield attributes in W++ form: `Hair("red" + "long")` is `Hair: red, long`."""
    count = 0
    for found in _ATTRIBUTE.finditer(text):
        label = labels.find(found["label"])
        if not label:
            continue
        count += 1
        if count > _MAX_ATTRIBUTES:
            return
        written = text[found.end() : found.end() + _MAX_VALUE].replace("“", '"').replace("”", '"')
        value = _VALUE.match(written)
        values = [each.strip() for each in _QUOTED.findall(value[0])] if value else []
        if any(values):
            yield f"{label}: {', '.join(filter(None, values))}"


class _LabelledText(NamedTuple):
    """A label, which may be empty, and the text after it."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class _DescriptionLine:
    """A line of a description.

    `is_heading` is true for Markdown headings, tags, and lines in bold or brackets. `is_end` is
    true if it only closes a tag or brackets.
    """

    indent: int
    has_bullet: bool
    is_heading: bool
    is_end: bool
    parts: Sequence[_LabelledText]


def _find_lines(text: str, labels: _AppearanceLabels) -> Iterator[str]:
    """Yield the labelled texts and the lines of sections about the appearance."""
    lines = [_read_line(line) if line.strip() else None for line in text.splitlines()]
    borders = (at for at, line in enumerate(lines) if line and (line.is_heading or line.is_end))
    last_border = max(borders, default=-1)
    sections = _AppearanceReader(labels)
    for at, line in enumerate(lines):
        if line is None:
            sections.read_blank(is_bordered=at < last_border)
        else:
            yield from sections.read(line)


class _AppearanceReader:
    """Reads a description line by line, and remembers the section that it is in."""

    def __init__(self, labels: _AppearanceLabels) -> None:
        self._labels = labels
        self._section: _DescriptionLine | None = None
        self._is_empty = True

    def read_blank(self, *, is_bordered: bool) -> None:
        """End a section at a blank line.

        A section under a heading goes on to the next heading. If there is none (`is_bordered`), its
        end is unknown, and it has one paragraph.
        """
        section = self._section
        if section and not self._is_empty and not (section.is_heading and is_bordered):
            self._section = None

    def read(self, line: _DescriptionLine) -> list[str]:
        """Return the texts of a line about the appearance."""
        found = [part._replace(label=self._labels.find(part.label)) for part in line.parts]
        labelled = [part for part in found if part.label]
        is_inside = bool(labelled) and not found[0].label
        if self._section and not is_inside and _ends(self._section, line):
            self._section = None
        said = [f"{part.label}: {part.text}" for part in labelled if part.text]
        if not labelled and self._section:
            said = _list_public(line)
        if said:
            self._is_empty = False
        if found[-1].label and not found[-1].text:
            self._section, self._is_empty = line, True
        return said


def _list_public(line: _DescriptionLine) -> list[str]:
    """Return the texts of a line in a section, up to a label of something else."""
    parts = takewhile(lambda part: not _is_private(part.label), line.parts)
    said = (f"{part.label}: {part.text}" if part.label else part.text for part in parts)
    return [text for text in said if text]


def _ends(section: _DescriptionLine, line: _DescriptionLine) -> bool:
    """True if a line is not part of a section."""
    if line.is_end or line.is_heading:
        return True
    label = line.parts[0].label
    if section.is_heading:
        return not line.has_bullet and _is_private(label)
    is_outside = line.indent <= section.indent and line.has_bullet <= section.has_bullet
    return bool(label) and is_outside


def _is_private(label: str) -> bool:
    return not _PRIVATE_WORDS.isdisjoint(label.casefold().split())


def _read_line(line: str) -> _DescriptionLine:
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    if not text.strip("]}),;"):
        return _DescriptionLine(
            indent, has_bullet=False, is_heading=False, is_end=True, parts=[_LabelledText("", "")]
        )
    tag = _TAG.match(text)
    # A macro in angle brackets, such as `<char>`, is not a tag.
    if tag is not None and not _MACRO_TAG.match(text):
        inside = text[tag.end() :].partition("</")[0].strip()
        part = _LabelledText("" if tag["end"] else _clean(tag["name"]), inside)
        is_end = bool(tag["end"])
        return _DescriptionLine(
            indent, has_bullet=False, is_heading=not inside, is_end=is_end, parts=[part]
        )
    heading = _HEADING.match(text)
    text = text[heading.end() :] if heading else text
    bullet = _BULLET.match(text)
    text = text[bullet.end() :] if bullet else text
    text = f"[{text.strip('= ')}]" if text.startswith("==") else text
    is_wrapped = text.startswith(_WRAPPED) and text.rstrip(":： ").endswith(  # noqa: RUF001
        ("**", "__", "]", ")", "}")
    )
    parts = list(_split_parts(text))
    return _DescriptionLine(
        indent,
        has_bullet=bool(bullet),
        is_heading=bool(heading) or (is_wrapped and not any(part.text for part in parts)),
        is_end=False,
        parts=parts,
    )


def _split_parts(text: str) -> Iterator[_LabelledText]:
    """Yield the labels of a line with their texts. A short line without any is a label itself."""
    separator = _SEPARATOR.search(text, 0, _LABEL_CHARACTERS)
    if separator is not None and _SENTENCE.search(text, 0, separator.start()):
        separator = None
    if (dash := _DASH.match(text)) and _is_known(dash[1]):
        text = f"{dash[1]}:{text[dash.end() :]}"
        separator = _SEPARATOR.search(text)
    begin = separator.end() if separator else 0
    has_more = _SEPARATOR.search(text, begin) is not None  # most lines need no further search
    inline = [
        each
        for each in (_INLINE.finditer(text, begin) if has_more else ())
        if text[each.start()] in ".,;|([{" or each["label"][:1].isupper()
    ]
    if separator is None and not inline and len(text) <= _LABEL_CHARACTERS:
        is_label = text.startswith(_WRAPPED) or _is_known(_clean(text))
        yield _LabelledText(_clean(text), "") if is_label else _LabelledText("", text)
        return
    ends = [*(each.start("label") for each in inline), len(text)]
    first = text[: ends[0]]
    if separator is None or separator.end() > ends[0]:
        yield _LabelledText("", _trim(first))
    else:
        yield _LabelledText(_clean(text[: separator.start()]), _trim(first[separator.end() :]))
    for each, end in zip(inline, ends[1:], strict=True):
        yield _LabelledText(_clean(each["label"]), _trim(text[each.end() : end]))


def _is_known(label: str) -> bool:
    name = label.casefold()
    return name in _NOUNS or name in _PRIVATE_WORDS


def _clean(label: str) -> str:
    return _CHAR.sub("char", label).strip(_MARKS)


def _trim(text: str) -> str:
    """Return a text without the marks and brackets that belong to its label or its list."""
    text = text.strip().strip("*_`").strip(" \t,;|")
    if text.startswith('["') and text.endswith('"]'):
        text = text[1:-1]
    for opening, closing in ("[]", "{}", "()"):
        if text.endswith(closing) and text.count(closing) > text.count(opening):
            text = text[:-1].rstrip()
        if text.startswith(opening) and text.count(opening) > text.count(closing):
            text = text[1:].lstrip()
    if text.startswith('"'):
        return ", ".join(filter(None, map(str.strip, _QUOTED.findall(text)))) or text
    return text.rstrip(" ,;|([{")
