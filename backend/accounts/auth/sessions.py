"""Sessions and API keys: tokens that open an account until they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from backend.accounts import repository
from backend.accounts.auth.identity import Identity, Scope, TokenKind
from backend.accounts.keys.keyring import (
    UserKey,
    check_protection,
    open_checked_sealer,
    report_tampering,
)
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import ensure_data_key, lock_account
from backend.accounts.keys.sealed_tables import has_texts_under_later_key
from backend.accounts.keys.slots import extend_standing_slot, make_slot, open_slot, wrap_directly
from backend.accounts.models import SLOT_LABEL, KeySlot
from backend.accounts.service import UnlockedAccount
from backend.core.logs import get_logger
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ForbiddenError
from backend.http.schemas import make_page
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer
from backend.vault.slots import (
    WrongSecretError,
    hash_for_lookup,
    make_token,
    parse_token,
)

log = get_logger(__name__)

TOKEN_PREFIXES: dict[TokenKind, str] = {"session": "ts_", "api_key": "tk_"}
TOUCH_INTERVAL = timedelta(minutes=1)
CHECK_SECONDS = 2.0


class SessionService:
    def __init__(
        self,
        database: Database,
        root: RootKeys,
        settings: Settings,
        open_keys: OpenKeys | None = None,
    ) -> None:
        self._database = database
        self._root = root
        self._open_keys = open_keys or OpenKeys()
        self._idle = timedelta(days=settings.session_idle_days)
        self._absolute = timedelta(days=settings.session_absolute_days)

    async def open_session(
        self, unlocked: UnlockedAccount, *, label: str, is_new: bool = False
    ) -> str:
        """Start a session. Return its token, which is returned once and stored nowhere.

        It also deletes the account's expired sessions, and adds its next data key if one is due.
        `is_new` is true for an account that was just made and has no texts to check.
        """
        user_id, at = unlocked.user.id, now()
        async with self._database.write() as session:
            user = await lock_account(session, user_id, unlocked.current, root=self._root)
            await ensure_data_key(session, user, unlocked.current.key)
            await repository.delete_ended_sessions(
                session, user_id, at=at, unused_since=at - self._idle
            )
            data_keys = await repository.list_data_keys(session, user_id)
            sealer = open_checked_sealer(user, data_keys, user_key=unlocked.current.key)
            if not is_new and await has_texts_under_later_key(session, user_id, sealer.current_key):
                raise report_tampering(user)
            token, slot = self._make_token_slot(
                "session",
                sealer,
                unlocked.current,
                label=label[:300],
                scope="manage",
                created_at=at,
                last_used_at=at,
                expires_at=at + self._absolute,
            )
            session.add(slot)
        return token

    async def make_api_key(
        self, identity: Identity, *, label: str, scope: Scope, expires_at: datetime | None
    ) -> tuple[str, KeySlot]:
        """Make an API key. Return the token, which is shown once and stored nowhere, and its slot.

        Raises `ForbiddenError` for an API key. Otherwise a leaked key could make others.
        """
        if identity.kind != "session":
            raise ForbiddenError("API keys cannot create API keys. Sign in to create one.")
        current = identity.current
        token, slot = self._make_token_slot(
            "api_key", identity.sealer, current, label=label, scope=scope, expires_at=expires_at
        )
        async with self._database.write() as session:
            await lock_account(session, identity.user_id, current, root=self._root)
            session.add(slot)
        return token, slot

    def _make_token_slot(
        self, kind: TokenKind, sealer: Sealer, current: UserKey, *, label: str, **columns: Any
    ) -> tuple[str, KeySlot]:
        token, secret = make_token(TOKEN_PREFIXES[kind])
        slot_id = new_id()
        slot = make_slot(
            kind,
            sealer.user_id,
            current,
            secret=secret,
            root=self._root,
            id=slot_id,
            lookup=hash_for_lookup(secret),
            sealed_label=sealer.seal(SLOT_LABEL, slot_id, label),
            **columns,
        )
        return token, slot

    async def authenticate(self, token: str, kind: TokenKind) -> Identity | None:
        """Return the identity of a token; None for an invalid token. Raises `TamperedAccountError`.

        For some minutes afterwards, the account's jobs can run with these keys.
        """
        secret = parse_token(token, TOKEN_PREFIXES[kind])
        identity = None if secret is None else await self._authenticate(secret, kind=kind)
        if identity is not None:
            self._open_keys.keep(identity)
        return identity

    async def list_slots(
        self, identity: Identity, kind: TokenKind, *, after: UUID | None, limit: int
    ) -> tuple[list[KeySlot], str | None]:
        """Return a page of open sessions or API keys, newest first. It may be short."""
        async with self._database.read() as session:
            rows = await repository.list_slots(
                session, identity.user_id, kind, after=after, limit=limit + 1
            )
        page, following = make_page(rows, limit)
        return [slot for slot in page if not self._has_ended(slot, now())], following

    async def end(self, slot_id: UUID, *, owner_id: UUID, kind: TokenKind) -> None:
        """End a session or an API key. Raises the not-found error of its kind."""
        self._open_keys.drop(owner_id)
        async with self._database.write() as session:
            await repository.delete_slot(session, slot_id, owner_id=owner_id, kind=kind)
        await self._database.log.empty_now()

    async def drop_ended_keys(self) -> None:
        """Drop keys in memory that another process has ended or changed."""
        in_memory = self._open_keys.group_by_slot()
        if not in_memory:
            return
        async with self._database.read_once() as session:
            found = await repository.list_usable_slots(session, set(in_memory))
        usable = {(slot.id, number) for slot, number in found if not self._has_ended(slot, now())}
        for slot_id, (user_id, key) in in_memory.items():
            if (slot_id, key.generation) not in usable:
                self._open_keys.drop(user_id)

    async def find_open(self, slot_ids: set[UUID]) -> set[UUID]:
        """Return those of these sessions and keys that have not ended. Used by streams."""
        async with self._database.read_once() as session:
            slots = await repository.list_usable_slots(session, slot_ids)
        return {slot.id for slot, _ in slots if not self._has_ended(slot, now())}

    async def _authenticate(self, secret: bytes, *, kind: TokenKind) -> Identity | None:
        async with self._database.read_once() as session:
            found = await repository.find_by_token(session, hash_for_lookup(secret), kind)
        if found is None:
            return None
        slot, user, data_keys, kdf = found
        at = now()
        if user.is_disabled or self._has_ended(slot, at):
            return None
        try:
            user_key, is_direct = open_slot(slot, secret=secret, root=self._root)
        except WrongSecretError:
            return None
        check_protection(user, user_key, kdf=kdf)
        sealer = open_checked_sealer(user, data_keys, user_key=user_key)
        if not is_direct:
            current = UserKey(user_key, user.key_generation)
            await wrap_directly(self._database, slot, current, secret=secret, root=self._root)
        if slot.last_used_at is None or at - slot.last_used_at > TOUCH_INTERVAL:
            async with self._database.write() as session:
                await repository.touch_slot(session, slot.id, at)
                if user.key_mode == "managed":
                    await extend_standing_slot(session, user.id, at=at)
        scope = "manage" if kind == "session" else read_scope(slot)
        return Identity(user, slot.id, kind, scope, sealer)

    def _has_ended(self, slot: KeySlot, at: datetime) -> bool:
        if slot.expires_at is not None and at >= slot.expires_at:
            return True
        if slot.kind != "session":
            return False
        return at - (slot.last_used_at or slot.created_at) >= self._idle


def read_scope(slot: KeySlot) -> Scope:
    """Return the scope of an API key; `read` if the stored value is invalid."""
    match slot.scope:
        case "manage" | "chat" as scope:
            return scope
        case _:
            return "read"


class SessionWatch:
    """Checks every two seconds if sessions with open streams have ended, with one query for all.

    A stream outlives the request that opened it, but ends with its session.
    """

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions
        self._streams: Counter[UUID] = Counter()
        self._ended: set[UUID] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        return self._streams.total()

    @contextlib.contextmanager
    def watching(self, slot_id: UUID) -> Generator[None]:
        self._streams[slot_id] += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._streams[slot_id] -= 1
            if not self._streams[slot_id]:
                del self._streams[slot_id]
                self._ended.discard(slot_id)

    def is_open(self, slot_id: UUID) -> bool:
        return slot_id not in self._ended

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            watched = set(self._streams)
            if not watched:
                continue
            try:
                still_open = await self._sessions.find_open(watched)
            except Exception as error:  # streams go on, and the next round looks again
                log.warning("session.watch_failed", exc_info=error)
            else:
                self._ended |= (watched - still_open) & set(self._streams)
