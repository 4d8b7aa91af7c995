"""The recent activity of an account, sealed for its user."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.identity import Identity, TokenKind
from backend.accounts.keys.keyring import check_current, open_checked_sealer
from backend.accounts.models import ACTIVITY_ADDRESS, ACTIVITY_ENTRY, ActivityEntry
from backend.accounts.service import UnlockedAccount
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.http.schemas import AnyConnection, Page, make_page
from backend.vault.sealing import Sealer

_BROWSERS = (
    # The first match counts, because most browsers also name their ancestors.
    ("Firefox/", "Firefox"),
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "Mac"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_PRODUCT = re.compile(r"[\w.-]{1,40}")

ADDRESS_RETENTION = timedelta(days=30)
MAX_ENTRIES = 1_000
"""Per account. The oldest ones are deleted first."""

MERGE_WINDOW = timedelta(hours=1)
MERGE_CANDIDATES = 20
"""Number of newest entries that a repeated event may be merged into."""

ActivityKind = Literal[
    "signed_up",
    "signed_in",
    "recovered",
    "wrong_second_factor",
    "password_changed",
    "recovery_code_made",
    "key_mode_changed",
    "key_rotated",
    "signed_out",
    "session_ended",
    "api_key_made",
    "api_key_ended",
    "second_factor_on",
    "second_factor_off",
    "one_time_codes_made",
    "exported",
    "imported",
]

REPEATABLE_KINDS: frozenset[ActivityKind] = frozenset(
    {"exported", "imported", "wrong_second_factor"}
)
"""Events that a program can cause many times. Within an hour they share one entry, so that they do
not push other entries out."""


class StoredEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sealed part of an entry. `detail` names its subject, such as the label of an API key."""

    kind: ActivityKind
    client: str = ""
    via: TokenKind | None = None
    detail: str = ""
    count: int = 1


class ActivityView(msgspec.Struct, kw_only=True):
    """An entry of the account's recent activity.

    `count` is how many times it happened within the hour after `at`. `via` is null if no one was
    signed in yet. `address` is null after 30 days.
    """

    id: UUID
    at: datetime
    kind: ActivityKind
    client: str
    address: str | None
    via: TokenKind | None
    detail: str
    count: int


class ActivityLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, request: AnyConnection, kind: ActivityKind, *, detail: str = "") -> None:
        identity: Identity = request.user
        entry = StoredEntry(kind, _describe_client(request), identity.kind, detail)
        async with self._database.write() as session:
            await _store(session, identity.sealer, entry, _get_peer(request))

    async def note_sign_in(
        self, request: AnyConnection, unlocked: UnlockedAccount, kind: ActivityKind
    ) -> None:
        """Store an entry for a sign-in. The account's keys are open, but it has no session yet."""
        user_id = unlocked.user.id
        async with self._database.write() as session:
            user = await repository.get_user(session, user_id, lock=True)
            check_current(user, unlocked.current)
            rows = await repository.list_data_keys(session, user_id)
            sealer = open_checked_sealer(user, rows, user_key=unlocked.current.key)
            await _store(
                session, sealer, StoredEntry(kind, _describe_client(request)), _get_peer(request)
            )

    async def list_entries(
        self, identity: Identity, *, after: UUID | None, limit: int
    ) -> Page[ActivityView]:
        query = (
            select(ActivityEntry)
            .where(ActivityEntry.user_id == identity.user_id)
            .order_by(ActivityEntry.id.desc())
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(ActivityEntry.id < after)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
        return Page(items=[_make_view(identity.sealer, row) for row in rows], next=following)


def describe_client(user_agent: str) -> str:
    """Return a browser and its system, such as `Firefox on Linux`, or the name of a program.

    Versions are left out, because a device can be recognised without them.
    """
    browser = next((name for sign, name in _BROWSERS if sign in user_agent), "")
    system = next((name for sign, name in _SYSTEMS if sign in user_agent), "")
    if browser and system:
        return f"{browser} on {system}"
    product = _PRODUCT.match(user_agent)
    return browser or system or (product[0] if product else "")


def _describe_client(request: AnyConnection) -> str:
    return describe_client(request.headers.get("user-agent", ""))


def _get_peer(request: AnyConnection) -> str:
    return request.client.host if request.client else ""


async def _store(session: AsyncSession, sealer: Sealer, entry: StoredEntry, address: str) -> None:
    if entry.kind in REPEATABLE_KINDS and await _merge(session, sealer, entry, address):
        return
    row_id = new_id()
    session.add(
        ActivityEntry(
            id=row_id,
            user_id=sealer.user_id,
            sealed_entry=sealer.seal_bytes(ACTIVITY_ENTRY, row_id, msgspec.json.encode(entry)),
            sealed_address=sealer.seal(ACTIVITY_ADDRESS, row_id, address) if address else None,
            created_at=now(),
        )
    )
    await session.flush()
    oldest_kept = (
        select(ActivityEntry.id)
        .where(ActivityEntry.user_id == sealer.user_id)
        .order_by(ActivityEntry.id.desc())
        .offset(MAX_ENTRIES - 1)
        .limit(1)
        .scalar_subquery()
    )
    await session.execute(
        delete(ActivityEntry).where(
            ActivityEntry.user_id == sealer.user_id, ActivityEntry.id < oldest_kept
        )
    )


async def _merge(session: AsyncSession, sealer: Sealer, entry: StoredEntry, address: str) -> bool:
    """Count the event in an equal entry of the last hour. Return False if there is none."""
    rows = await session.scalars(
        select(ActivityEntry)
        .where(
            ActivityEntry.user_id == sealer.user_id,
            ActivityEntry.created_at > now() - MERGE_WINDOW,
        )
        .order_by(ActivityEntry.id.desc())
        .limit(MERGE_CANDIDATES)
        .with_for_update()
    )
    for row in rows:
        before = _open(sealer, row)
        # Wrong second factors are merged from any number of addresses.
        is_same = entry.kind == before.kind == "wrong_second_factor" or (
            entry == msgspec.structs.replace(before, count=1)
            and address == _open_address(sealer, row)
        )
        if is_same:
            more = msgspec.structs.replace(before, count=before.count + 1)
            row.sealed_entry = sealer.seal_bytes(ACTIVITY_ENTRY, row.id, msgspec.json.encode(more))
            return True
    return False


def _open(sealer: Sealer, row: ActivityEntry) -> StoredEntry:
    data = sealer.open_bytes(ACTIVITY_ENTRY, row.id, row.sealed_entry)
    return msgspec.json.decode(data, type=StoredEntry)


def _open_address(sealer: Sealer, row: ActivityEntry) -> str:
    if row.sealed_address is None:
        return ""
    return sealer.open(ACTIVITY_ADDRESS, row.id, row.sealed_address)


def _make_view(sealer: Sealer, row: ActivityEntry) -> ActivityView:
    entry = _open(sealer, row)
    is_fresh = now() - row.created_at < ADDRESS_RETENTION
    return ActivityView(
        id=row.id,
        at=row.created_at,
        kind=entry.kind,
        client=entry.client,
        address=(_open_address(sealer, row) or None) if is_fresh else None,
        via=entry.via,
        detail=entry.detail,
        count=entry.count,
    )
