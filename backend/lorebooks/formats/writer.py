"""Write books and entries as lorebook files, merged with their imported sources.

If the source has the format that is written, only the members changed since the import differ from
it. If it has another format, unknown members are written to `extensions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from backend.characters.cards.codec import Notes, Object, get_object, omit, overlay
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.formats.fields import (
    BOOK,
    CONTENT,
    ENTRIES,
    OURS,
    BookSource,
    EntrySource,
    Format,
    Target,
    has_bare_patterns,
    read_book,
    read_entry,
    write_book,
    write_entry,
)

Sourced = tuple[LoreEntry, EntrySource | None]

REQUIRED: Final = ("keys", "content", "extensions", "enabled", "insertion_order")
REQUIRED_BY_V3: Final = (*REQUIRED, "use_regex")
_NOT_IN_TABLE: Final[dict[Format, frozenset[str]]] = {
    "world_info": frozenset({"uid", "addMemo", "extensions"}),
    "character_book": frozenset({"id", "position", "use_regex", "extensions"}),
}
"""Members without a field in the table. Another format represents them differently."""


def entry_object(entry: LoreEntry, source: EntrySource | None, target: Target) -> Object:
    written = write_entry(entry, target)
    if source is None:
        return written
    if source.format != target:
        return _convert_entry(written, source, target)
    raw = _whole(source, entry)
    before = write_entry(read_entry(target, raw, Notes()), target)
    if before == written:
        return raw
    if target == "character_book" and has_bare_patterns(raw):
        # Write keys with slashes: with SillyTavern's extensions `use_regex` has no meaning.
        before = {**before, "keys": None, "secondary_keys": None}
    return overlay(raw, before, written)


def _whole(source: EntrySource, entry: LoreEntry) -> Object:
    """Return an entry's source with its current content."""
    said = CONTENT[source.format]
    return {**source.raw, said: entry.content} if source.is_short else source.raw


def _convert_entry(written: Object, source: EntrySource, target: Target) -> Object:
    raw = source.raw
    known = ENTRIES[source.format].members | _NOT_IN_TABLE.get(source.format, frozenset())
    extensions = omit(get_object(raw, "extensions"), ENTRIES["character_book"].inner)
    kept = {**extensions, **omit(raw, known)}
    if target == "world_info":
        own = {"extensions": kept} if kept else {}
        return {**written, **own, **_pick_number(raw.get("id"), "uid")}
    priority = {"priority": kept.pop("priority")} if "priority" in kept else {}
    written["extensions"] = {**kept, **written["extensions"]}
    return {**written, **priority, **_pick_number(raw.get("uid"), "id")}


def _pick_number(value: object, member: str) -> Object:
    return {member: value} if isinstance(value, int) and not isinstance(value, bool) else {}


def world_info_object(
    book: BookFields, source: BookSource | None, entries: Sequence[Sourced]
) -> Object:
    listed = [entry_object(entry, own, "world_info") for entry, own in entries]
    found = _build_members(book, source, "world_info")
    if source is None or not _is_untouched(source, entries, listed):
        # SillyTavern's copy of the original card book is out of date now.
        found.pop("originalData", None)
    for member in ("description", "extensions"):
        if not found.get(member) and (source is None or member not in source.raw):
            found.pop(member, None)
    return {**found, "entries": _index_by_uid(listed, [own for _, own in entries])}


def _is_untouched(source: BookSource, entries: Sequence[Sourced], listed: Sequence[Object]) -> bool:
    return len(listed) == source.count and all(
        own is not None and each == _whole(own, entry)
        for each, (entry, own) in zip(listed, entries, strict=True)
    )


def _index_by_uid(listed: Iterable[Object], sources: Iterable[EntrySource | None]) -> Object:
    """Return entries by key, each with a unique `uid`. Valid keys and uids are kept."""
    pairs = list(zip(listed, sources, strict=True))
    numbers = [each["uid"] for each, _ in pairs if _pick_number(each.get("uid"), "uid")]
    highest = max((number for number in numbers if number < 2**53), default=-1)
    free = iter(range(max(highest, -1) + 1, max(highest, -1) + 2 + 2 * len(pairs)))
    taken: set[int] = set()
    wanted = {own.key for _, own in pairs if own and own.key}
    found: Object = {}
    for each, own in pairs:
        uid = each.get("uid")
        if not _pick_number(uid, "uid") or uid in taken:
            uid = next(number for number in free if str(number) not in wanted)
        taken.add(cast("int", uid))
        key = own.key if own and own.key and own.key not in found else str(uid)
        while key in found:
            key = f"{key}_"
        found[key] = {**each, "uid": uid}
    return found


def book_object(
    book: BookFields,
    source: BookSource | None,
    entries: Sequence[Sourced],
    *,
    required: Sequence[str] = (),
) -> Object:
    """Return a book as `character_book`. Missing `required` members are added to entries."""
    listed: list[Object] = []
    for place, (entry, own) in enumerate(entries):
        each = entry_object(entry, own, "character_book")
        if own is None or own.format != "character_book":
            each.setdefault("id", place)
        lacking = [member for member in required if member not in each]
        if lacking:
            # Empty `extensions` do not change the meaning of `use_regex`.
            written: Object = {**write_entry(entry, "character_book"), "extensions": {}}
            each = {**each, **{member: written[member] for member in lacking}}
        listed.append(each)
    found = _build_members(book, source, "character_book")
    if required:
        found.setdefault("extensions", {})
    return {**found, "entries": listed}


def lorebook_v3_object(
    book: BookFields, source: BookSource | None, entries: Sequence[Sourced]
) -> Object:
    """Return a book as a standalone file of Character Card V3."""
    data = book_object(book, source, entries, required=REQUIRED_BY_V3)
    return {"spec": "lorebook_v3", "data": data, **(source.envelope if source else {})}


def _build_members(book: BookFields, source: BookSource | None, target: Target) -> Object:
    """Return the members of a book next to its entries."""
    written = write_book(book)
    if source is None:
        return written
    if source.format == target:
        read = read_book(source.raw, Notes(), given_name=source.given_name)
        return overlay(source.raw, write_book(read), written)
    rest = omit(source.raw, BOOK.members | {"extensions", "originalData"})
    former = omit(get_object(source.raw, "extensions"), {OURS})
    return {**written, "extensions": {**rest, **former, **written["extensions"]}}
