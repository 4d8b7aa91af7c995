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

STABLE_KINDS: Final = frozenset(
    {"system_prompt", "block", "persona", "character", "examples", "public_part", "scenario"}
)
"""Kinds of sections with texts that stay the same from turn to turn."""


def make_head(client: ClientParts) -> list[PromptItem]:
    return _make_items(CLIENT_SYSTEM, "Client's system message", client.head, "head")


def make_notes(client: ClientParts) -> list[PromptItem]:
    """Return the messages among the history, each at its exact place."""
    messages = [note.message for note in client.notes]
    items = _make_items(CLIENT_NOTE, "Client's note", messages, "depth")
    return [
        structs.replace(item, depth=note.place, from_start=True)
        for item, note in zip(items, client.notes, strict=True)
    ]


def make_end(client: ClientParts, line_id: UUID | None) -> list[PromptItem]:
    """Return the line that is answered and the instructions after it.

    Empty if the client sends neither, so that Talekeeper's own instruction is needed.
    """
    said = [client.line] if client.line is not None else []
    line = _make_items("user_line", "User's line", said, "line")
    return [
        *(structs.replace(item, source_id=line_id) for item in line),
        *_make_items(CLIENT_INSTRUCTION, "Client's instruction", client.tail, "tail"),
    ]


def _make_items(
    kind: str, title: str, messages: Sequence[PromptMessage], place: Place
) -> list[PromptItem]:
    """Return one item for each message. From the second on, the title has a number."""
    return [
        PromptItem(
            kind=kind,
            title=f"{title} {number}" if number > 1 else title,
            text=message.text,
            place=place,
            role=message.role,
            reasons=[Reason("client")],
            starts=True,
            message=message,
        )
        for number, message in enumerate(messages, 1)
    ]


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
            # An item with a depth is a separate message, unless it joins another one.
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
