"""The user keys of claimed jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import and_, bindparam, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.keyring import check_protection, open_sealer
from backend.accounts.keys.open_keys import OpenKey, OpenKeys
from backend.accounts.models import DataKey, KeySlot, User
from backend.core.logs import get_logger
from backend.errors import AppError
from backend.jobs.claims import ClaimedJob
from backend.vault.root import RootKeys, Wrapped
from backend.vault.sealing import Sealer
from backend.vault.slots import unwrap_lent

log = get_logger(__name__)


class JobKeys:
    """Opens sealers for jobs: from memory, from the job's row, or from a standing slot.

    Args:
        open_keys: Keys of signed-in users; None in a process without sign-ins.
    """

    def __init__(self, root: RootKeys, open_keys: OpenKeys | None = None) -> None:
        self._root = root
        self._open = open_keys

    def users(self) -> list[UUID]:
        return self._open.users() if self._open else []

    async def load(
        self, session: AsyncSession, jobs: Sequence[ClaimedJob], *, at: datetime
    ) -> KeyHolders | None:
        wanted = [job for job in jobs if job.user_id is not None]
        return await KeyHolders.load(session, wanted, self._open, at=at) if wanted else None

    def sealers(
        self, jobs: Sequence[ClaimedJob], holders: KeyHolders | None, *, at: datetime
    ) -> dict[UUID, Sealer]:
        found: dict[UUID, Sealer] = {}
        for job in jobs:
            if job.user_id is None or holders is None:
                continue
            sealer = None
            try:
                sealer = self._sealer(job, holders, at)
            except AppError as error:  # treated like a missing key
                log.warning("job.key_refused", job_id=job.id, problem=error.slug)
            if sealer is None:
                self._forget(job.share, holders)
            else:
                found[job.id] = sealer
        return found

    def _forget(self, user_id: UUID, holders: KeyHolders) -> None:
        """Drop a key from memory that did not open, so that it does not attract more jobs."""
        tried = holders.in_memory.get(user_id)
        # A newer key has not been tried yet.
        if self._open and tried is not None and self._open.get(user_id) is tried:
            self._open.drop(user_id)

    def _sealer(self, job: ClaimedJob, holders: KeyHolders, at: datetime) -> Sealer | None:
        user = holders.users.get(job.share)
        if user is None or user.is_disabled:
            return None
        user_key = self._user_key(job, holders, at)
        if user_key is None:
            return None
        # With the current data keys, because one may have been added since the key was lent.
        return open_sealer(user, holders.find_data_keys(user.id), user_key=user_key)

    def _user_key(self, job: ClaimedJob, holders: KeyHolders, at: datetime) -> bytes | None:
        user = holders.users[job.share]
        # First, because a turn that ran during a change of the user key may have lent the old one.
        if (here := holders.here.get(user.id)) is not None:
            return here.sealer.user_key
        if (lent := holders.lent.get(job.id)) is not None:
            return unwrap_lent("job", job.id, user.id, lent, root=self._root)
        slot = holders.standing.get(user.id)
        if slot is None or user.key_mode != "managed":
            return None
        if not is_later(slot.expires_at, at):
            return None
        wrapped = Wrapped(slot.root_version, slot.wrapped)
        user_key = unwrap_lent("standing", slot.id, user.id, wrapped, root=self._root)
        check_protection(user, user_key, kdf=holders.kdf.get(user.id))
        return user_key


_IN_SLOT = and_(
    KeySlot.user_id == User.id,
    or_(
        KeySlot.kind.in_(("password", "standing")),
        KeySlot.id.in_(bindparam("slot_ids", expanding=True)),
    ),
)
_OWNERS = (
    select(User, DataKey, KeySlot)
    .join(DataKey, DataKey.user_id == User.id)
    .outerjoin(KeySlot, _IN_SLOT)
    .where(User.id.in_(bindparam("user_ids", expanding=True)))
)
"""A row for each pair of a data key and a slot. A user has few of both."""


class KeyHolders:
    """The users of some jobs with their data keys, lent keys and slots."""

    def __init__(self) -> None:
        self.users: dict[UUID, User] = {}
        self._data_keys: defaultdict[UUID, dict[UUID, DataKey]] = defaultdict(dict)
        self.standing: dict[UUID, KeySlot] = {}
        self.kdf: dict[UUID, bytes | None] = {}
        self.in_memory: dict[UUID, OpenKey] = {}
        self.here: dict[UUID, OpenKey] = {}
        self.lent: dict[UUID, Wrapped] = {}

    @classmethod
    async def load(
        cls,
        session: AsyncSession,
        jobs: Sequence[ClaimedJob],
        open_keys: OpenKeys | None,
        *,
        at: datetime,
    ) -> KeyHolders:
        """Load users and slots in the transaction that claims the jobs.

        That transaction has locked the rows of the jobs, so the lent keys in them are current. A
        key in memory is valid while its session is open and the user key is unchanged.
        """
        holders, user_ids = cls(), {job.share for job in jobs}
        holders.in_memory = {
            user_id: key
            for user_id in user_ids
            if open_keys and (key := open_keys.get(user_id)) is not None
        }
        holders.lent = {
            job.id: Wrapped(job.root_version, job.wrapped_key)
            for job in jobs
            if job.wrapped_key and job.root_version is not None and is_later(job.key_until, at)
        }
        here = [key.slot_id for key in holders.in_memory.values()]
        values = {"user_ids": user_ids, "slot_ids": here}
        owners: Any = await session.execute(_OWNERS, values)
        for user, data_key, slot in owners:
            holders.users[user.id] = user
            holders._data_keys[user.id][data_key.id] = data_key
            if slot is not None:
                holders._add_slot(user, slot)
        return holders

    def find_data_keys(self, user_id: UUID) -> list[DataKey]:
        return list(self._data_keys[user_id].values())

    def _add_slot(self, user: User, slot: KeySlot) -> None:
        if slot.kind == "standing":
            self.standing[user.id] = slot
        elif slot.kind == "password":
            self.kdf[user.id] = slot.kdf
        else:
            key = self.in_memory[user.id]
            if (key.slot_id, key.generation) == (slot.id, user.key_generation):
                self.here[user.id] = key


def is_later(time: datetime | None, at: datetime) -> bool:
    """True if a time is set and later than `at`."""
    return time is not None and time > at
