"""What accounts use of their quotas: `/me/usage`, and for administrators of each account."""

from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.errors import UserNotFoundError
from backend.accounts.profile.administration import require_administrator
from backend.http.schemas import RAISES
from backend.quotas.service import AccountUsage, Quotas


class UsageController(Controller):
    """The account's own usage."""

    path = "/me/usage"
    tags = ("Accounts",)

    @get(summary="Read usage")
    async def get_usage(
        self, identity: NamedDependency[Identity], quotas: NamedDependency[Quotas]
    ) -> AccountUsage:
        """How much the account uses of each quota.

        Requests, and what is under way at once, are those of the process that answers.
        """
        return await quotas.usage(identity.user_id)


class AccountUsageController(Controller):
    """The same of any account, for administrators: numbers, and no texts."""

    path = "/admin/users/{user_id:uuid}/usage"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(opt={RAISES: (UserNotFoundError,)}, summary="Read an account's usage")
    async def get_user_usage(
        self, user_id: FromPath[UUID], quotas: NamedDependency[Quotas]
    ) -> AccountUsage:
        """How much an account uses of each quota: numbers, and no texts."""
        return await quotas.usage(user_id)
