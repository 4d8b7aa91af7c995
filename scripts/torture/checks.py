"""Comparison of stored chats with the ledger: nothing is lost, doubled or changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import select

from backend.chats.models import MESSAGE_CONTENT, Chat, Message
from backend.database.engine import Database
from backend.vault.sealing import Sealer
from scripts.torture.client import PATIENCE, Client
from scripts.torture.ledger import Ledger, Line, Thing
from scripts.torture.model import FLOOD, LINE_MARK, REPLY_MARK

LEAST_FLOOD = 1_000
PARAGRAPH = "\n\n"


@dataclass(frozen=True)
class StoredMessage:
    """A message as the database has it, its text opened with the user's keys."""

    row: Message
    text: str


async def read_stored_messages(
    database: Database, sealer: Sealer, chats: Iterable[str]
) -> dict[str, list[StoredMessage]]:
    """All messages of chats, on all branches; a chat that is gone has none."""
    found: dict[str, list[StoredMessage]] = {chat: [] for chat in chats}
    ids = [UUID(chat) for chat in found]
    query = select(Message).where(Message.chat_id.in_(ids), Message.user_id == sealer.user_id)
    async with database.read() as session:
        for row in await session.scalars(query):
            text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
            found[str(row.chat_id)].append(StoredMessage(row, text))
    return found


def check_chat(
    ledger: Ledger, chat: str, stored: Sequence[StoredMessage], outputs: dict[str, str]
) -> list[str]:
    """Return the messages of a chat that are lost, doubled or changed."""
    by_id = {str(each.row.id): each for each in stored}
    found = [
        _lost(ledger, line)
        for line in ledger.lines.values()
        if line.chat_id == chat and line.id not in by_id
    ]
    found += [
        _find_changed(line, by_id[line.id].text, outputs)
        for line in ledger.lines.values()
        if line.chat_id == chat and line.id in by_id
    ]
    back = ledger.must_be_missing() & by_id.keys()
    found += [f"back: message {each} of chat {chat} was deleted" for each in back]
    for each in stored:
        ledger.parents[str(each.row.id)] = str(each.row.parent_id) if each.row.parent_id else None
        if not is_said(each.text, ledger.sent, outputs):
            found.append(f"changed: message {each.row.id} says what was never said: {each.text!r}")
    marks = Counter(mark for each in stored for mark in set(LINE_MARK.findall(each.text)))
    found += [f"doubled: {mark[:40]!r} in chat {chat}" for mark, n in marks.items() if n > 1]
    replies = [each for each in stored if each.row.role == "assistant"]
    said = [each for each in replies if REPLY_MARK.match(each.text) and chat not in ledger.copies]
    if len(said) > ledger.answered[chat] > 0:
        found.append(f"doubled: {len(said)} replies to {ledger.answered[chat]} turns in {chat}")
    return [each for each in found if each]


def _lost(ledger: Ledger, line: Line) -> str:
    if ledger.may_be_missing(line):
        return ""
    return f"lost: message {line.id} of chat {line.chat_id}, acknowledged at {line.since:.1f} s"


def has_text(line: Line, text: str) -> bool:
    """True if a message has its text. A reply may have been continued."""
    if line.text is None or _without_flood(text) == line.text:
        return True
    return text.startswith(line.text) and bool(
        REPLY_MARK.match(text.removeprefix(line.text).removeprefix(" "))
    )


def _find_changed(line: Line, text: str, outputs: dict[str, str]) -> str:
    if not has_text(line, text):
        return f"changed: message {line.id} reads otherwise"
    if missing := [mark for mark in line.marks if outputs[mark] not in text]:
        return f"changed: reply {line.id} lacks what was acknowledged ({missing})"
    return ""


def is_said(text: str, sent: Collection[str], outputs: Mapping[str, str]) -> bool:
    """True if a text was sent, or generated, or is one continued by the other.

    Of what the model said there may be a beginning alone, where it broke off.
    """
    marks = list(REPLY_MARK.finditer(text))
    ends = [*(each.start() for each in marks[1:]), len(text)][: len(marks)]
    start = _without_flood(text[: marks[0].start()] if marks else text)
    return (not start or start in sent or start.removesuffix(" ") in sent) and all(
        # The text after a choice is a new paragraph; a continuation follows a space.
        outputs.get(mark[0], "").startswith(
            _without_flood(text[mark.start() : end]).removesuffix(PARAGRAPH).removesuffix(" ")
        )
        for mark, end in zip(marks, ends, strict=True)
    )


def _without_flood(text: str) -> str:
    """Without the 10 MB that a broken model said in one piece, or as much of it as was stored."""
    rest = text.rstrip(FLOOD)
    return text if len(text) - len(rest) < LEAST_FLOOD else rest


def check_tree(chat: Chat, rows: Sequence[Message]) -> list[str]:
    """Return the violations of the promises of `backend.chats.tree`."""
    by_id = {row.id: row for row in rows}
    path: set[UUID] = set()
    leaf = chat.leaf_id
    while leaf is not None:
        if leaf not in by_id:
            return [f"tree: chat {chat.id} leads to a message that is not there"]
        path.add(leaf)
        leaf = by_id[leaf].parent_id
    found: list[str] = []
    if {row.id for row in rows if row.is_active} != path:
        found.append(f"tree: the active messages of chat {chat.id} are not one path")
    selected = Counter(row.parent_id for row in rows if row.is_selected)
    if any(count > 1 for count in selected.values()):
        found.append(f"tree: chat {chat.id} has two selected siblings")
    for row in rows:
        parent = by_id.get(row.parent_id) if row.parent_id else None
        if row.position != (parent.position + 1 if parent else 0):
            found.append(f"tree: message {row.id} has position {row.position}")
        own = 0 if row.hidden else row.tokens
        if row.path_tokens != (parent.path_tokens if parent else 0) + own:
            found.append(f"tree: path_tokens of message {row.id} is {row.path_tokens}")
    return found


async def check_chats(
    database: Database,
    client: Client,
    sealer: Sealer,
    ledger: Ledger,
    outputs: dict[str, str],
    chats: set[str],
) -> list[str]:
    """Hold chats against the ledger and against the rules of the tree."""
    stored = await read_stored_messages(database, sealer, chats)
    async with database.read() as session:
        rows = await session.scalars(
            select(Chat).where(Chat.id.in_([UUID(each) for each in chats]))
        )
        present = {str(row.id): row for row in rows}
    found: list[str] = []
    for chat, messages in stored.items():
        found += check_chat(ledger, chat, messages, outputs)
        if chat in present:
            found += check_tree(present[chat], [each.row for each in messages])
        elif messages:
            found.append(f"orphan: messages of chat {chat}, which is gone")
    return [f"{client.name}: {each}" for each in found]


async def check_things(client: Client, url: str, ledger: Ledger) -> list[str]:
    """Hold the account's chats, characters and the like, as the API lists them."""
    found: list[str] = []
    by_kind: defaultdict[str, list[Thing]] = defaultdict(list)
    for thing in ledger.things.values():
        by_kind[thing.kind].append(thing)
    for kind, things in by_kind.items():
        items = await all_items(client, url, f"/{kind}s")
        # Providers of the environment are the operator's.
        items = [item for item in items if item.get("scope", "user") == "user"]
        label = "title" if kind == "chat" else "name"
        counts = Counter(item[label] for item in items)
        by_name = {item[label]: item for item in items}
        for thing in things:
            found.append(_check_count(thing, counts.pop(thing.name, 0)))
            if thing.values and thing.is_usable:
                value = by_name.get(thing.name, {}).get("description")
                if value not in thing.values:
                    found.append(f"changed: {thing.name} says {value!r}")
        found += [f"doubled: {count} of {name}" for name, count in counts.items()]
    return [f"{client.name}: {each}" for each in found if each]


def _check_count(thing: Thing, count: int) -> str:
    name = f"{thing.name} ({'with' if thing.has_key else 'without'} an Idempotency-Key)"
    if count > 1:
        return f"doubled: {count} of {name}"
    if thing.deleted == "ok" and count:
        return f"back: {name} was deleted"
    if thing.outcome == "ok" and thing.deleted == "refused" and not count:
        return f"lost: {name}"
    if thing.outcome == "refused" and count:
        return f"doubled: {name} was refused, and is there"
    return ""


async def all_items(client: Client, url: str, path: str, **query: Any) -> list[dict[str, Any]]:
    """The items of all pages of a list."""
    found: list[dict[str, Any]] = []
    headers = {"authorization": f"Bearer {client.token}"}
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", timeout=PATIENCE, trust_env=False
    ) as http:
        while True:
            params = {"limit": 500, **query}
            answer = await http.get(path, params=params, headers=headers)
            answer.raise_for_status()
            page = answer.json()
            found += page["items"]
            if page.get("next") is None:
                return found
            query["after"] = page["next"]
