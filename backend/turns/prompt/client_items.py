"""The items of a client's own messages, and the places of Talekeeper's sections next to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec import structs

from backend.context.assembly import CLIENT_NOTE, Place, PromptItem
from backend.core.reasons import Reason
from backend.generation.model import PromptMessage
from backend.turns.prompt.client import ClientParts

CLIENT_SYSTEM: Final = "client_system"
CLIENT_INSTRUCTION: Final = "client_instruction"

STABLE_KINDS: Final = frozenset({"system_prompt", "block", "persona", "character", "examples"})
"""Kinds of sections with texts that stay the same from turn to turn."""


def make_head(client: ClientParts) -> list[PromptItem]:
    return [
        _make_item(CLIENT_SYSTEM, "Client's system message", message, "head")
        for message in client.head
    ]


def make_notes(client: ClientParts) -> list[PromptItem]:
    """Return the messages among the history, each at its exact place."""
    return [
        structs.replace(
            _make_item(CLIENT_NOTE, "Client's note", note.message, "depth"),
            depth=note.place,
            from_start=True,
        )
        for note in client.notes
    ]


def make_end(client: ClientParts, line_id: UUID | None) -> list[PromptItem]:
    """Return the line that is answered and the instructions after it.

    Empty if the client sends neither, so that Talekeeper's own instruction is needed.
    """
    items = [
        _make_item(CLIENT_INSTRUCTION, "Client's instruction", message, "tail")
        for message in client.tail
    ]
    if client.line is not None:
        line = _make_item("user_line", "User's line", client.line, "line")
        items.insert(0, structs.replace(line, source_id=line_id))
    return items


def _make_item(kind: str, title: str, message: PromptMessage, place: Place) -> PromptItem:
    return PromptItem(
        kind=kind,
        title=title,
        text=message.text,
        place=place,
        role=message.role,
        reasons=[Reason("client")],
        starts=True,
        message=message,
    )


def place_sections(client: ClientParts, sections: Sequence[PromptItem]) -> list[PromptItem]:
    """Place Talekeeper's sections: stable ones after the client's head, others after its history.

    `sections` may contain the client's line and outlets, which keep their place.
    """
    head: list[PromptItem] = []
    added: list[PromptItem] = []
    others: list[PromptItem] = []
    for item in sections:
        if item.place in {"line", "outlet"} or item.message is not None:
            others.append(item)
        elif item.place == "head" and not client.prompt.replaces_sections and _is_stable(item):
            head.append(structs.replace(item, starts=item.starts or not head))
        else:
            # An item with a depth is a message of its own, unless it joins another one.
            starts = item.starts or (item.place == "depth" and not item.joins) or not added
            added.append(
                structs.replace(
                    item, place="added", depth=0, from_start=False, joins=False, starts=starts
                )
            )
    return [*make_head(client), *head, *make_notes(client), *added, *others]


def _is_stable(item: PromptItem) -> bool:
    is_constant = any(reason.kind == "constant" for reason in item.reasons)
    return item.kind in STABLE_KINDS or (item.kind == "lore" and is_constant)
