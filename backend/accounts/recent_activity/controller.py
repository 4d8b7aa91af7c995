"""`GET /me/activity`."""

from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from backend.accounts.identity import Identity
from backend.accounts.middleware import NEEDS
from backend.accounts.recent_activity.log import ActivityLog, ActivityView
from backend.wire import Page, PageSize


class ActivityController(Controller):
    """What happened to the account that asks."""

    path = "/me/activity"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(operation_id="listActivity", summary="List recent activity")
    async def list_activity(
        self,
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ActivityView]:
        """Sign-ins, new keys, exports and changes of the account's security, newest first.

        Entries are kept for a year, the latest 1,000 of them; their addresses for 30 days. Wrong
        passwords are not listed: without the password there is no key to seal an entry with.
        """
        items = await activity.list_entries(identity, limit=limit + 1, after=after)
        more = len(items) > limit
        return Page(items=items[:limit], next=str(items[limit - 1].id) if more else None)
