"""Books and scans of a few words, for tests of activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from backend.core.reasons import FoundIn, Reason, render_reasons
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import Scan, ScannedLine, ScanOutcome
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.entries import BookFields, LoreEntry, LoreSettings


def id_of(title: str) -> UUID:
    """The id of the entry or book of that title in these tests."""
    return uuid5(NAMESPACE_OID, title)


def entry(title: str, *keys: str, **fields: Any) -> LoreEntry:
    """An entry whose content is "About <title>.", unless another is given."""
    values: dict[str, Any] = {"content": f"About {title}.", **fields}
    return LoreEntry(title=title, keys=list(keys), **values)


def book(*entries: LoreEntry, name: str = "Book", **fields: Any) -> CompiledBook:
    """A compiled book of these entries, in this order."""
    numbered = [(id_of(one.title), place, one) for place, one in enumerate(entries)]
    return CompiledBook(id_of(name), 1, BookFields(name=name, **fields), numbered)


def lines(*texts: str) -> list[ScannedLine]:
    """Messages, newest first: the line that was just written, then older ones."""
    count = len(texts)
    return [
        ScannedLine("Anna", text, FoundIn("message", count - place) if place else FoundIn("line"))
        for place, text in enumerate(texts)
    ]


def words_in(text: str) -> int:
    """Count tokens: a word is a token in these tests."""
    return len(text.split())


def replacing(macro: str, value: str) -> Callable[[str], str]:
    """An expansion of one macro."""

    def expand(text: str) -> str:
        return text.replace(macro, value)

    return expand


def scan_of(books: CompiledBook | Sequence[CompiledBook], *texts: str, **changes: Any) -> Scan:
    """A scan of `texts`, newest first, in which a word is a token. Other names are settings."""
    names = set(LoreSettings.__struct_fields__)
    settings = {name: changes.pop(name) for name in list(changes) if name in names}
    fields: dict[str, Any] = {
        "books": [books] if isinstance(books, CompiledBook) else books,
        "messages": lines(*texts),
        "settings": LoreSettings(**settings),
        "budget": 10_000,
        "count": words_in,
        "message_count": 10,
        "reply_count": 5,
        "seed": 7,
        "by_meaning": "semantic" in changes,
        **changes,
    }
    return Scan(**fields)


def scanned(
    books: CompiledBook | Sequence[CompiledBook], *texts: str, **changes: Any
) -> ScanOutcome:
    """The outcome of such a scan."""
    return activate(scan_of(books, *texts, **changes))


def titles(outcome: ScanOutcome) -> list[str]:
    """Titles of the activated entries, in the order of the outcome."""
    return [one.title for one in outcome.activated]


def said(reason: Reason) -> str:
    return render_reasons([reason])


def reasons(outcome: ScanOutcome) -> dict[str, list[str]]:
    """The rendered reasons of each activated entry."""
    return {one.title: list(map(said, one.reasons)) for one in outcome.activated}


def refusals(outcome: ScanOutcome) -> dict[str, str]:
    """The rendered reason of each entry that was left out."""
    return {one.title: said(one.reason) for one in outcome.left_out}
