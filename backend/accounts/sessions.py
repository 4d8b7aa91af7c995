"""Sessions and API keys: tokens that open an account until they end."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from backend.accounts import repository
from backend.accounts.identity import Identity, Scope, TokenKind
from backend.accounts.keyring import check_settings_mac, open_sealer
from backend.accounts.lent import prolong_standing
from backend.accounts.models import SLOT_LABEL, KeySlot
from backend.accounts.open_keys import OpenKeys
from backend.accounts.rotation import ensure_data_key
from backend.accounts.service import Unlocked
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.errors import ForbiddenError
from backend.settings import Settings
from backend.vault.slots import (
    WrongSecretError,
    lookup_hash,
    new_token,
    token_secret,
    unwrap_with_secret,
    wrap_with_secret,
)

SESSION_PREFIX = "ts_"
API_KEY_PREFIX = "tk_"
PREFIXES: dict[TokenKind, str] = {"session": SESSION_PREFIX, "api_key": API_KEY_PREFIX}
TOUCH_EVERY = timedelta(minutes=1)


class SessionService:
    """Makes, checks, lists and ends sessions and API keys."""

    def __init__(
        self, database: Database, settings: Settings, open_keys: OpenKeys | None = None
    ) -> None:
        self._database = database
        self._open_keys = open_keys or OpenKeys()
        self._idle = timedelta(days=settings.session_idle_days)
        self._absolute = timedelta(days=settings.session_absolute_days)

    async def open_session(self, unlocked: Unlocked, *, label: str) -> tuple[str, KeySlot]:
        """Start a session: (token, its slot). The token is handed out once and stored nowhere.

        By the way the account's sessions that have run out are cleared away, and it gets its next
        data key where that is due.
        """
        token, secret = new_token(SESSION_PREFIX)
        slot_id, user_id, at = new_id(), unlocked.user.id, now()
        async with self._database.write() as session:
            await ensure_data_key(session, unlocked.user, unlocked.user_key)
            await repository.delete_ended_sessions(
                session, user_id, at=at, unused_since=at - self._idle
            )
            sealer = open_sealer(
                user_id, await repository.data_keys(session, user_id), user_key=unlocked.user_key
            )
            slot = KeySlot(
                id=slot_id,
                user_id=user_id,
                kind="session",
                wrapped=wrap_with_secret(
                    "session", slot_id, user_id, secret=secret, user_key=unlocked.user_key
                ),
                lookup=lookup_hash(secret),
                scope="manage",
                sealed_label=sealer.seal(SLOT_LABEL, slot_id, label[:300]),
                created_at=at,
                last_used_at=at,
                expires_at=at + self._absolute,
            )
            session.add(slot)
        return token, slot

    async def make_api_key(
        self, identity: Identity, *, label: str, scope: Scope, expires_at: datetime | None
    ) -> tuple[str, KeySlot]:
        """Make an API key: (token, its slot). The token is shown once and stored nowhere.

        Raises `ForbiddenError` for a key that asks: one that leaked would outlive its end in
        others.
        """
        if identity.kind != "session":
            raise ForbiddenError("An API key can't make API keys. Sign in, and make it there.")
        token, secret = new_token(API_KEY_PREFIX)
        slot_id = new_id()
        slot = KeySlot(
            id=slot_id,
            user_id=identity.user_id,
            kind="api_key",
            wrapped=wrap_with_secret(
                "api_key", slot_id, identity.user_id, secret=secret, user_key=identity.user_key
            ),
            lookup=lookup_hash(secret),
            scope=scope,
            sealed_label=identity.sealer.seal(SLOT_LABEL, slot_id, label),
            expires_at=expires_at,
        )
        async with self._database.write() as session:
            session.add(slot)
        return token, slot

    async def authenticate(self, token: str, kind: TokenKind) -> Identity | None:
        """Whose token this is, with the account's keys; None when it opens nothing.

        For some minutes from here on, jobs of the account's can run on these keys. Raises
        `TamperedAccountError`.
        """
        secret = token_secret(token, PREFIXES[kind])
        identity = None if secret is None else await self._authenticate(secret, kind=kind)
        if identity is not None:
            self._open_keys.seen(identity)
        return identity

    async def list_slots(self, identity: Identity, kind: TokenKind) -> list[KeySlot]:
        """The account's sessions or API keys that have not ended, newest first."""
        async with self._database.read() as session:
            slots = await repository.list_slots(session, identity.user_id, kind)
        return [slot for slot in slots if not self._ended(slot, now())]

    async def end(self, slot_id: UUID, *, owner_id: UUID, kind: TokenKind) -> None:
        """End a session or an API key. Raises the kind's not-found error."""
        self._open_keys.drop(owner_id)
        async with self._database.write() as session:
            await repository.delete_slot(
                session,
                slot_id,
                owner_id=owner_id,
                kind=kind,
            )

    async def still_open(self, slot_ids: set[UUID]) -> set[UUID]:
        """Which of these sessions and keys have not ended: for streams that outlive a request."""
        async with self._database.read() as session:
            slots = await repository.usable_slots(session, slot_ids)
        return {slot.id for slot in slots if not self._ended(slot, now())}

    async def _authenticate(self, secret: bytes, *, kind: TokenKind) -> Identity | None:
        async with self._database.read() as session:
            found = await repository.find_by_token(session, lookup_hash(secret), kind)
        if found is None:
            return None
        slot, user, data_keys, kdf = found
        at = now()
        if user.is_disabled or self._ended(slot, at):
            return None
        try:
            user_key = unwrap_with_secret(kind, slot.id, user.id, secret=secret, blob=slot.wrapped)
        except WrongSecretError:
            return None
        check_settings_mac(user, user_key, kdf=kdf)
        if slot.last_used_at is None or at - slot.last_used_at > TOUCH_EVERY:
            async with self._database.write() as session:
                await repository.touch_slot(session, slot.id, at)
                if user.key_mode == "managed":
                    await prolong_standing(session, user.id, at=at)
        return Identity(
            user_id=user.id,
            slot_id=slot.id,
            kind=kind,
            scope="manage" if kind == "session" else scope_of(slot),
            is_administrator=user.is_administrator,
            key_mode=user.key_mode,
            sealer=open_sealer(user.id, data_keys, user_key=user_key),
            user_key=user_key,
            sealed_settings=user.sealed_settings,
            settings_revision=user.settings_revision,
            created_at=user.created_at,
            wrapped_name=user.wrapped_name,
        )

    def _ended(self, slot: KeySlot, at: datetime) -> bool:
        if slot.expires_at is not None and at >= slot.expires_at:
            return True
        if slot.kind != "session":
            return False
        return at - (slot.last_used_at or slot.created_at) >= self._idle


def scope_of(slot: KeySlot) -> Scope:
    """How far an API key reaches: no further than to look, should the row say nonsense."""
    match slot.scope:
        case "manage" | "chat" as scope:
            return scope
        case _:
            return "read"
