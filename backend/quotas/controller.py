"""Usage of quotas: `/me/usage`, and that of each account for administrators."""

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
        """The account's usage of each quota.

        Requests and concurrent work are those of the process that responds.
        """
        return await quotas.usage(identity.user_id)


class AccountUsageController(Controller):
    """The usage of any account, for administrators. It contains numbers, but no texts."""

    path = "/admin/users/{user_id:uuid}/usage"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(opt={RAISES: (UserNotFoundError,)}, summary="Read an account's usage")
    async def get_user_usage(
        self, user_id: FromPath[UUID], quotas: NamedDependency[Quotas]
    ) -> AccountUsage:
        """An account's usage of each quota. It contains numbers, but no texts."""
        return await quotas.usage(user_id)
