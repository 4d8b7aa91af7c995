"""Find the stored chat that a client's list continues."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Select, bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import repository
from backend.chats.models import MESSAGE_CONTENT, Chat, ChatCharacter, Message
from backend.chats.text_digests import TextDigester
from backend.chats.tree import has_children
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.database.base import get_table, skip_index, split_chunks
from backend.database.engine import Database
from backend.openai_api.alignment import TextProfile
from backend.openai_api.chat_state import load_state
from backend.openai_api.contracts import ChatPlacement, ChatVersion, Line
from backend.openai_api.path_match import ClientLines, PathMatch, match_block, match_digests
from backend.openai_api.stored_paths import (
    NO_DIGEST,
    MessagePath,
    PathCache,
    PathEnd,
    PathLines,
    load_branch,
)
from backend.vault.sealing import SealBrokenError, Sealer

PROBE_LINES: Final = 12
"""Lines at the end of the list. The chats that contain them are the candidates."""

PROBE_CHUNK: Final = 400
"""Lines that are looked up at once, if the last ones are not stored."""

MAX_HITS: Final = 1_000
MAX_CHATS: Final = 8
MAX_BRANCHES: Final = 6

MAX_SETTLED: Final = 4
"""Number of candidates that are compared with the client's texts."""

MAX_TEXTS: Final = 48
"""Stored texts that are read to find the changed messages of one candidate."""

MAX_SIBLINGS: Final = 16
MAX_STEPS: Final = 64
"""Lines of the tail that are followed to other branches."""

MAX_NEW_DIGESTS: Final = 2_000
"""Messages of earlier versions that get their digests in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationScope:
    """The chats that a conversation can be of: those with a character, of a campaign, or one."""

    kind: Literal["character", "campaign", "chat"]
    id: UUID


@dataclass(frozen=True, slots=True)
class _Hit:
    """A stored message that is a line of the client, by its digest."""

    id: UUID
    chat: ChatVersion
    is_active: bool
    digest: bytes


class _ReadChat(NamedTuple):
    """A chat with lines of the client. `hidden` are the messages that the endpoint has hidden."""

    chat: ChatVersion
    active: MessagePath
    hidden: Collection[UUID]
    hits: Sequence[_Hit]


@dataclass(slots=True, kw_only=True)
class _Candidate:
    """A chat that a list may be of. `hidden` are the messages that the endpoint has hidden."""

    chat: ChatVersion
    active: MessagePath
    hidden: Collection[UUID]
    match: PathMatch

    @property
    def rank(self) -> tuple[int, int, int, int, int, UUID]:
        match = self.match
        is_active = match.last < match.path.active
        length = len(match.path)
        return match.matches, -match.changes, -match.skipped, is_active, length, self.chat.id


class ConversationFinder:
    """Recognises conversations among the chats of an account."""

    def __init__(self, database: Database, pool: CpuPool, paths: PathCache) -> None:
        self._database = database
        self._pool = pool
        self._paths = paths

    async def find(
        self,
        identity: Identity,
        lines: Sequence[Line],
        scope: ConversationScope,
        *,
        may_be_prefill: bool = True,
        is_retry: bool = False,
    ) -> ChatPlacement:
        """Return the place of a client's list in the stored chats.

        With `may_be_prefill`, an assistant's last line may be the beginning of a new reply, so that
        it must be equal to a stored reply to be this reply. With `is_retry`, the first attempt may
        have stored the last line of a list that shares nothing else with a named chat.

        Raises `ChatNotFoundError` if the chat of the scope does not exist.
        """
        client = await self.digest_lines(identity, lines)
        return await self.locate(
            identity, client, scope, may_be_prefill=may_be_prefill, is_retry=is_retry
        )

    async def digest_lines(self, identity: Identity, lines: Sequence[Line]) -> ClientLines:
        return await self._pool.run(
            identity.user_id,
            partial(ClientLines.digest, TextDigester(identity.sealer), lines),
            size=sum(len(line.text) for line in lines) // 10,
        )

    async def locate(
        self,
        identity: Identity,
        client: ClientLines,
        scope: ConversationScope,
        *,
        may_be_prefill: bool = True,
        is_retry: bool = False,
    ) -> ChatPlacement:
        """Do the same for lines with their digests."""
        lookup = _Lookup(
            self._database,
            self._pool,
            self._paths,
            identity.sealer,
            client,
            scope,
            may_be_prefill=may_be_prefill,
            is_retry=is_retry,
        )
        return await lookup.run()


class _Lookup:
    """One search for a conversation. No transaction waits for work in the pool."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        paths: PathCache,
        sealer: Sealer,
        client: ClientLines,
        scope: ConversationScope,
        *,
        may_be_prefill: bool,
        is_retry: bool,
    ) -> None:
        self._database = database
        self._pool = pool
        self._paths = paths
        self._sealer = sealer
        self._owner_id = sealer.user_id
        self._digester = TextDigester(sealer)
        self._client = client
        self._scope = scope
        self._is_named = scope.kind == "chat"
        self._may_be_prefill = may_be_prefill
        self._is_retry = is_retry
        self._named: ChatVersion | None = None

    async def run(self) -> ChatPlacement:
        candidates = await self._match_chats()
        candidates.sort(key=lambda each: each.rank, reverse=True)
        candidates = candidates[:MAX_SETTLED]
        for each in candidates:
            await self._settle(each)
        found = [
            each
            for each in candidates
            if each.match.is_recognised(is_named=self._is_named, is_retry=self._is_retry)
        ]
        if found:
            best = max(found, key=lambda each: each.rank)
            return self._make_placement(best, is_leaf=await self._is_leaf(best.match))
        if self._named is None:
            return ChatPlacement(tail=self._client.lines)
        line = self._client.last_user
        return ChatPlacement(
            chat_id=self._named.id, tail=[line] if line else [], version=self._named
        )

    async def _read_chats(self) -> list[_ReadChat]:
        """Read the chats that the list may be of, in one transaction if all have digests."""
        async with self._database.read() as session:
            if self._is_named:
                self._named = make_version(
                    await repository.get_chat(session, self._scope.id, owner_id=self._owner_id)
                )
            rows = await self._find_undigested(session)
            if not rows:
                return await self._find_chats(session)
        await self._add_digests(rows)
        async with self._database.read() as session:
            return await self._find_chats(session)

    async def _find_undigested(self, session: AsyncSession) -> Sequence[Any]:
        """Return messages from before they had digests, the newest first."""
        values = {"owner": self._owner_id, "scope": self._scope.id}
        return (await session.execute(_select_undigested(self._scope.kind), values)).all()

    async def _add_digests(self, rows: Sequence[Any]) -> None:
        digests = await self._pool.run(
            self._owner_id,
            partial(_digest_rows, self._sealer, rows),
            size=sum(len(row.sealed_content) for row in rows),
        )
        async with self._database.write() as session:
            connection = await session.connection()
            await connection.execute(_ADD_DIGEST, digests)

    async def _match_chats(self) -> list[_Candidate]:
        candidates: list[_Candidate] = []
        for chat, active, hidden, hits in await self._read_chats():
            matched = await self._match(active, hidden)
            if matched is not None:
                candidates.append(
                    _Candidate(chat=chat, active=active, hidden=hidden, match=matched)
                )
            others = [hit for hit in hits if not hit.is_active]
            if others and matched is not None:
                known = {self._client.digests[line] for line in matched.lines}
                others = [hit for hit in others if hit.digest not in known]
            for path in await self._read_branches(active, others):
                branch = await self._match(path, hidden)
                if branch is not None:
                    candidates.append(
                        _Candidate(chat=chat, active=active, hidden=hidden, match=branch)
                    )
        return candidates

    async def _find_chats(self, session: AsyncSession) -> list[_ReadChat]:
        """Read the chats with most hits, the newest first."""
        digests = self._client.digests
        hits = await self._find_hits(session, digests[-PROBE_LINES:])
        for part in split_chunks(digests[:-PROBE_LINES][::-1], PROBE_CHUNK):
            if hits:
                break
            hits = await self._find_hits(session, part)
        by_chat: dict[UUID, list[_Hit]] = {}
        for hit in hits:
            by_chat.setdefault(hit.chat.id, []).append(hit)
        chats = sorted(
            by_chat.values(),
            key=lambda found: (len({hit.digest for hit in found}), found[0].chat.id),
            reverse=True,
        )
        return [await self._read_chat(session, hits) for hits in chats[:MAX_CHATS]]

    async def _find_hits(self, session: AsyncSession, digests: Sequence[bytes]) -> list[_Hit]:
        if not digests:
            return []
        values = {"owner": self._owner_id, "scope": self._scope.id, "digests": set(digests)}
        versions: dict[UUID, ChatVersion] = {}
        hits: list[_Hit] = []
        for row in await session.execute(_select_hits(self._scope.kind), values):
            if row.chat_id not in versions:
                versions[row.chat_id] = ChatVersion(
                    id=row.chat_id,
                    user_id=self._owner_id,
                    leaf_id=row.leaf_id,
                    hidden_changes=row.hidden_changes,
                    updated_at=row.updated_at,
                )
            hits.append(_Hit(row.id, versions[row.chat_id], row.is_active, row.text_digest))
        return hits

    async def _read_chat(self, session: AsyncSession, hits: Sequence[_Hit]) -> _ReadChat:
        chat = hits[0].chat
        active = await self._paths.load(session, chat)
        hidden: Collection[UUID] = ()
        if active.has_hidden or not all(hit.is_active for hit in hits):
            hidden = set((await load_state(session, self._sealer, chat.id)).hidden)
        return _ReadChat(chat, active, hidden, hits)

    async def _read_branches(self, active: MessagePath, hits: Sequence[_Hit]) -> list[MessagePath]:
        """Return the paths of other branches with messages of the list, its last lines first."""
        if not hits:
            return []
        places = {digest: place for place, digest in enumerate(self._client.digests)}
        paths: list[MessagePath] = []
        async with self._database.read() as session:
            for hit in sorted(hits, key=lambda hit: (places[hit.digest], hit.id), reverse=True):
                if len(paths) == MAX_BRANCHES:
                    break
                if not any(path.contains(hit.id) for path in paths):
                    paths.append(await load_branch(session, active, hit.id))
        return paths

    async def _match(self, path: MessagePath, hidden: Collection[UUID]) -> PathMatch | None:
        client = self._client
        if (found := match_block(client, path)) is not None:
            return found
        return await self._pool.run(
            self._owner_id,
            partial(match_digests, client, path, hidden),
            size=len(client.lines) + len(path),
        )

    async def _settle(self, candidate: _Candidate) -> None:
        """Find changed and missing messages, and follow the tail to other branches."""
        match = candidate.match
        if match.gaps:
            sealed = await self._read_texts(match.list_text_ids(MAX_TEXTS))
            await self._pool.run(
                self._owner_id,
                lambda: match.settle(_open_texts(self._sealer, sealed)),
                size=sum(map(len, sealed.values())),
            )
        for _ in range(MAX_STEPS):
            if not self._may_follow(match) or not await self._follow(match):
                break
        match.drop_notes(self._client.digests, candidate.hidden)

    async def _read_texts(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        if not ids:
            return {}
        async with self._database.read() as session:
            rows = await session.execute(_TEXTS, {"ids": ids, "owner": self._owner_id})
            return {row.id: row.sealed_content for row in rows}

    def _may_follow(self, match: PathMatch) -> bool:
        """True if the next line can be a stored one that is trimmed or on another branch."""
        match list(match.tail):
            case []:
                return False
            case [(_, line)]:
                return line.role == "assistant" and not self._may_be_prefill
            case _:
                return True

    async def _follow(self, match: PathMatch) -> bool:
        """Take the next line of the tail if a message below the last match is this line."""
        parents = [match.path.get_id(place) for place in range(match.last, match.end)]
        values = {"parents": parents, "owner": self._owner_id}
        async with self._database.read() as session:
            rows = (await session.execute(_CHILDREN, values)).all()
        _, line = match.tail[0]
        rows = [row for row in rows if row.role == line.role]
        digest = self._digester.compute(line.role, line.text)
        equal = [row for row in rows if row.text_digest == digest]
        row, text = next(iter(equal), None), None
        if row is None and line.role == "assistant" and rows:
            row = await self._pool.run(
                self._owner_id,
                partial(_find_near, self._sealer, rows, line.text),
                size=sum(len(row.sealed_content) for row in rows),
            )
            text = line.text
        if row is None:
            return False
        place, path = match.last + 1 + parents.index(row.parent_id), match.path
        if place >= len(path) or path.get_id(place) != row.id:
            plain = (row.id, row.role, row.hidden, row.text_digest)
            path = path.cut(place).extend([plain], are_active=row.is_active)
        match.follow(path, place, text=text)
        return True

    async def _is_leaf(self, match: PathMatch) -> bool:
        """True if no message follows the last match. Always true if the tail follows it."""
        if match.tail:
            return True
        if match.end < len(match.path):
            return False
        async with self._database.read() as session:
            return not await has_children(session, match.path.get_id(match.end - 1))

    def _make_placement(self, candidate: _Candidate, *, is_leaf: bool) -> ChatPlacement:
        match, path = candidate.match, candidate.match.path
        is_active = match.last < path.active
        below = candidate.active if is_active else path
        end = below.find_line(match.last + 1)
        return ChatPlacement(
            chat_id=candidate.chat.id,
            pairs=PathLines(path, match.lines),
            edits={path.get_id(place): text for place, text in match.edits.items()},
            hides=[path.get_id(place) for place in match.hides],
            shows=match.list_shown(candidate.hidden),
            last=path.get_line(match.last),
            parent_id=below.get_id(end - 1),
            next_position=end,
            tail=[line for _, line in match.tail],
            rest=PathEnd(candidate.active, end) if is_active else (),
            window_start=match.window_start,
            is_leaf=is_leaf,
            version=candidate.chat,
        )


def make_version(chat: Chat) -> ChatVersion:
    return ChatVersion(
        id=chat.id,
        user_id=chat.user_id,
        leaf_id=chat.leaf_id,
        hidden_changes=chat.hidden_changes,
        updated_at=chat.updated_at,
    )


def _digest_rows(sealer: Sealer, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the digests of messages. A message that does not open gets one without a text."""
    digester = TextDigester(sealer)
    found: list[dict[str, Any]] = []
    for row in rows:
        check_stopped()
        try:
            text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
            found.append({"key": row.id, "digest": digester.compute(row.role, text)})
        except SealBrokenError:
            found.append({"key": row.id, "digest": NO_DIGEST})
    return found


def _open_texts(sealer: Sealer, sealed: Mapping[UUID, bytes]) -> dict[UUID, str]:
    """Open texts. Those that do not open are omitted."""
    texts: dict[UUID, str] = {}
    for message_id, blob in sealed.items():
        check_stopped()
        try:
            texts[message_id] = sealer.open(MESSAGE_CONTENT, message_id, blob)
        except SealBrokenError:
            continue
    return texts


def _find_near(sealer: Sealer, rows: Sequence[Any], sent: str) -> Any:
    """Return the row with the text that is nearest to a client's, or None."""
    texts = _open_texts(sealer, {row.id: row.sealed_content for row in rows})
    own, best, nearest = TextProfile(sent), 0.0, None
    for row in rows:
        check_stopped()
        similarity = own.compare(TextProfile(texts.get(row.id, "")))
        if similarity is not None and similarity > best:
            best, nearest = similarity, row
    return nearest


def _select_chats(kind: str) -> Select[UUID]:
    """Select the chats of a scope."""
    query = select(Chat.id).where(Chat.user_id == bindparam("owner"), Chat.is_ready)
    match kind:
        case "chat":
            return query.where(Chat.id == bindparam("scope"))
        case "campaign":
            return query.where(Chat.campaign_id == bindparam("scope"))
        case _:
            return query.join(ChatCharacter, ChatCharacter.chat_id == Chat.id).where(
                ChatCharacter.character_id == bindparam("scope")
            )


@cache
def _select_hits(kind: str) -> Select[*tuple[Any, ...]]:
    """Select messages by their digests, the newest first, without greetings, and their chats.

    The conditions on the chat are a subquery, because SQLite would begin a join with all chats.
    The chats are joined to the limited hits.
    """
    is_greeting = (Message.position == 0) & (Message.role == "assistant")
    chat = _select_chats(kind).where(Chat.id == Message.chat_id).correlate(Message)
    hits = (
        select(Message.id, Message.is_active, Message.text_digest, Message.chat_id)
        .where(
            Message.user_id == bindparam("owner"),
            Message.text_digest.is_not(None),
            Message.text_digest.in_(bindparam("digests", expanding=True)),
            Message.removed_at.is_(None),
            ~is_greeting,
            chat.exists(),
        )
        .order_by(skip_index(Message.id).desc())
        .limit(MAX_HITS)
        .subquery()
    )
    return (
        select(*hits.c, Chat.leaf_id, Chat.hidden_changes, Chat.updated_at)
        .join(Chat, Chat.id == hits.c.chat_id)
        .order_by(hits.c.id.desc())
    )


@cache
def _select_undigested(kind: str) -> Select[*tuple[Any, ...]]:
    return (
        select(Message.id, Message.role, Message.sealed_content)
        .where(Message.text_digest.is_(None), Message.chat_id.in_(_select_chats(kind)))
        .order_by(skip_index(Message.id).desc())
        .limit(MAX_NEW_DIGESTS)
    )


_MESSAGES = get_table(Message)
_ADD_DIGEST = (
    update(_MESSAGES)
    .where(_MESSAGES.c.id == bindparam("key"), _MESSAGES.c.text_digest.is_(None))
    .values(text_digest=bindparam("digest"))
)
_TEXTS = select(Message.id, Message.sealed_content).where(
    Message.id.in_(bindparam("ids", expanding=True)),
    skip_index(Message.user_id) == bindparam("owner"),
)
_CHILDREN = (
    select(
        Message.id,
        Message.parent_id,
        Message.role,
        Message.hidden,
        Message.text_digest,
        Message.is_active,
        Message.sealed_content,
    )
    .where(
        Message.parent_id.in_(bindparam("parents", expanding=True)),
        skip_index(Message.user_id) == bindparam("owner"),
        Message.removed_at.is_(None),
    )
    .order_by(Message.is_active.desc(), Message.id.desc())
    .limit(MAX_SIBLINGS)
)
"""The statements are built once, because building takes longer than running."""
