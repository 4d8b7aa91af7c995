"""`/memory`: how memory is, and having it rebuilt."""

from litestar import Controller, get, post
from litestar.di import NamedDependency

from backend.accounts.auth.identity import Identity
from backend.http.schemas import STORES
from backend.jobs.schemas import JobView
from backend.memory.status import MemoryStatus, MemoryStatusService
from backend.quotas.definitions import QUEUED_JOBS
from backend.quotas.service import Quotas

Caller = NamedDependency[Identity]
Status = NamedDependency[MemoryStatusService]


class MemoryController(Controller):
    """Your memory as a whole."""

    path = "/memory"
    tags = ("Memory",)

    @get(operation_id="getMemory", summary="Read the memory status")
    async def status(self, identity: Caller, memory_status: Status) -> MemoryStatus:
        """Which model is in use, what is indexed and what waits, and what needs a hand.

        While texts move to another model's collection, `move` names both.
        """
        return await memory_status.get(identity)

    @post(
        "/rebuild",
        status_code=202,
        opt={STORES: False},
        operation_id="rebuildMemory",
        summary="Rebuild your index",
    )
    async def rebuild(
        self, identity: Caller, memory_status: Status, quotas: NamedDependency[Quotas]
    ) -> JobView:
        """Have every point of your texts made again, in the background; search goes on meanwhile.

        What was embedded before is not embedded again. Of these jobs one is under way at a time:
        while there is one, the answer is that one.
        """
        await quotas.check(QUEUED_JOBS, identity.user_id)
        return await memory_status.rebuild(identity)
