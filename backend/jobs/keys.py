"""The user keys of claimed jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import BindParameter, bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.keys.keyring import check_protection, open_sealer
from backend.accounts.keys.open_keys import OpenKey, OpenKeys
from backend.accounts.models import DataKey, KeySlot, User
from backend.core.logs import get_logger
from backend.errors import AppError
from backend.jobs.claims import ClaimedJob
from backend.jobs.models import Job
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
        if user is None or user.is_disabled or not holders.data_keys[user.id]:
            return None
        user_key = self._user_key(job, holders, at)
        if user_key is None:
            return None
        # With the current data keys, because one may have been added since the key was lent.
        return open_sealer(user, holders.data_keys[user.id], user_key=user_key)

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
        if slot.expires_at is None or slot.expires_at <= at:
            return None
        wrapped = Wrapped(slot.root_version, slot.wrapped)
        user_key = unwrap_lent("standing", slot.id, user.id, wrapped, root=self._root)
        check_protection(user, user_key, kdf=holders.kdf.get(user.id))
        return user_key


_USER_IDS: BindParameter[UUID] = bindparam("user_ids", expanding=True)
_USERS = (
    select(User, DataKey).join(DataKey, DataKey.user_id == User.id).where(User.id.in_(_USER_IDS))
)
# Read again, because the user key may have changed since the job was claimed.
_LENT = select(Job.id, Job.root_version, Job.wrapped_key).where(
    Job.id.in_(bindparam("job_ids", expanding=True)),
    Job.key_until > bindparam("at"),
    Job.wrapped_key.is_not(None),
    Job.root_version.is_not(None),
)
_SLOTS = select(KeySlot).where(
    KeySlot.user_id.in_(_USER_IDS),
    KeySlot.kind.in_(("password", "standing"))
    | KeySlot.id.in_(bindparam("slot_ids", expanding=True)),
)


class KeyHolders:
    """The users of some jobs with their data keys, lent keys and slots."""

    def __init__(self) -> None:
        self.users: dict[UUID, User] = {}
        self.data_keys: dict[UUID, list[DataKey]] = defaultdict(list)
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
        """Load users, slots, and the lent keys of jobs that have one.

        A key in memory is valid while its session is open and the user key is unchanged.
        """
        holders, user_ids = cls(), {job.share for job in jobs}
        holders.in_memory = {
            user_id: key
            for user_id in user_ids
            if open_keys and (key := open_keys.get(user_id)) is not None
        }
        for user, data_key in await session.execute(_USERS, {"user_ids": user_ids}):
            holders.users[user.id] = user
            holders.data_keys[user.id].append(data_key)
        if carrying := [job.id for job in jobs if job.wrapped_key]:
            lent = await session.execute(_LENT, {"job_ids": carrying, "at": at})
            holders.lent = {row.id: Wrapped(row.root_version, row.wrapped_key) for row in lent}
        await holders._load_slots(session, user_ids)
        return holders

    async def _load_slots(self, session: AsyncSession, user_ids: set[UUID]) -> None:
        here = [key.slot_id for user_id, key in self.in_memory.items() if user_id in user_ids]
        values = {"user_ids": user_ids, "slot_ids": here}
        for slot in await session.scalars(_SLOTS, values):
            if slot.kind == "standing":
                self.standing[slot.user_id] = slot
            elif slot.kind == "password":
                self.kdf[slot.user_id] = slot.kdf
            elif (key := self.in_memory[slot.user_id]).slot_id == slot.id:
                owner = self.users.get(slot.user_id)
                if owner is not None and owner.key_generation == key.generation:
                    self.here[slot.user_id] = key
