"""The account that asks: `/me`, and what happened to it."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SHOWN_ONCE, expired_cookies
from backend.accounts.errors import (
    BusyError,
    KeysChangedError,
    LastAdministratorError,
    TooManyAttemptsError,
    TooManyDataKeysError,
    WeakPasswordError,
    WrongCredentialsError,
)
from backend.accounts.profile.activity import ActivityLog, ActivityView
from backend.accounts.profile.service import ProfileService
from backend.accounts.profile.settings import UserSettings
from backend.accounts.schemas import (
    AccountPatch,
    Confirmation,
    PasswordChange,
    RecoveryCode,
    UserView,
)
from backend.accounts.service import AccountService
from backend.errors import ForbiddenError, PreconditionFailedError
from backend.generation.registry import UnknownModelError
from backend.generation.sampling import SettingNotTakenError
from backend.http.schemas import EXAMPLE, PATCHES, RAISES, Page, PageSize, make_etag

AnyRequest = Request[Any, Any, Any]

CONFIRMED = (WrongCredentialsError, TooManyAttemptsError, BusyError)
"""What a route may answer with that asks for the password."""


class MeController(Controller):
    """The account that asks."""

    path = "/me"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(opt={NEEDS: "read"}, summary="Read the account")
    async def get_me(
        self, identity: NamedDependency[Identity], accounts: NamedDependency[AccountService]
    ) -> UserView:
        """The account that asks."""
        return UserView.of(identity.user, accounts.name_of(identity))

    @patch(
        opt={PATCHES: AccountPatch, RAISES: (KeysChangedError, TooManyDataKeysError)},
        summary="Change the key mode",
    )
    async def change_me(
        self,
        request: AnyRequest,
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
        profile: NamedDependency[ProfileService],
    ) -> UserView:
        """Set `key_mode`; null goes back to the default, `per_job`.

        It says when work that a reply causes may run. `per_job`: each piece of work carries your
        key for a day at most, so it finishes while you are away. `managed`: the server keeps your
        key under its root key until you have been away for 30 days; only a session may set it.
        `sealed`: work runs while you are here, and waits otherwise.
        """
        user = await profile.patch_account(identity, data)
        if user.key_mode != identity.key_mode:
            await activity.note(request, "key_mode_changed", detail=user.key_mode)
        return UserView.of(user, accounts.name_of(identity))

    @delete(opt={RAISES: (*CONFIRMED, LastAdministratorError)}, summary="Delete the account")
    async def delete_me(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
    ) -> Response[None]:
        """Delete the account and everything in it: its keys first, so that nothing is readable."""
        await accounts.confirm_password(identity, data.password)
        await accounts.delete(identity.user_id)
        return Response(None, cookies=expired_cookies(request))

    @post(
        "/password",
        status_code=204,
        opt={RAISES: (*CONFIRMED, WeakPasswordError, KeysChangedError)},
        summary="Change password",
    )
    async def change_password(
        self,
        request: AnyRequest,
        data: JSONBody[PasswordChange],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> None:
        """Replace the password, and change the keys. Other sessions end; API keys go on."""
        await accounts.change_password(identity, data.current_password, data.new_password)
        await activity.note(request, "password_changed")

    @post(
        "/rotate-key",
        status_code=204,
        opt={RAISES: (*CONFIRMED, TooManyDataKeysError, KeysChangedError)},
        summary="Rotate the keys",
    )
    async def change_keys(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> None:
        """Make a new user key, and a new data key for what is written from now on.

        For when the keys may have been read out of the server's memory. The password, the recovery
        code, sessions and API keys stay as they are. Texts that are there already stay under the
        data keys that they were sealed under; `talekeeper rotate-keys data` seals them again.
        """
        if identity.kind != "session":
            raise ForbiddenError("API keys cannot rotate the account's keys. Sign in to do it.")
        await accounts.confirm_password(identity, data.password)
        await accounts.renew(identity.user_id, identity.current)
        await activity.note(request, "key_rotated")

    @post(
        "/recovery-code",
        opt={SHOWN_ONCE: True, RAISES: (*CONFIRMED, KeysChangedError)},
        summary="New recovery code",
    )
    async def new_recovery_code(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        activity: NamedDependency[ActivityLog],
        accounts: NamedDependency[AccountService],
    ) -> RecoveryCode:
        """Make a new recovery code; the old one no longer works."""
        code = await accounts.new_recovery_code(identity, data.password)
        await activity.note(request, "recovery_code_made")
        return RecoveryCode(recovery_code=code)

    @get("/settings", opt={NEEDS: "read"}, summary="Read settings")
    async def get_settings(self, identity: NamedDependency[Identity]) -> Response[UserSettings]:
        """Defaults of the account's chats."""
        return Response(
            identity.settings, headers={"ETag": make_etag(identity.user.settings_revision)}
        )

    @patch(
        "/settings",
        opt={
            RAISES: (UnknownModelError, SettingNotTakenError, PreconditionFailedError),
            PATCHES: UserSettings,
            EXAMPLE: {"model": "demo", "sampling": {"temperature": 0.9}},
        },
        summary="Change settings",
    )
    async def patch_settings(
        self,
        request: AnyRequest,
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        profile: NamedDependency[ProfileService],
    ) -> Response[UserSettings]:
        """Merge into the settings: what is absent stays, null goes back to the default."""
        settings, revision = await profile.patch_settings(
            identity, data, if_match=request.headers.get("if-match")
        )
        return Response(settings, headers={"ETag": make_etag(revision)})


class ActivityController(Controller):
    """What happened to the account that asks."""

    path = "/me/activity"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List recent activity")
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
        return await activity.list_entries(identity, after=after, limit=limit)
