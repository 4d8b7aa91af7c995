"""The signed-in account: `/me`, its settings and its recent activity."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SHOWN_ONCE, make_expired_cookies
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
from backend.http.schemas import (
    EXAMPLE,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    tag_body,
)

CONFIRMATION_ERRORS = (WrongCredentialsError, TooManyAttemptsError, BusyError)


class MeController(Controller):
    path = "/me"
    tags = ("Accounts",)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(opt={NEEDS: "read"}, summary="Read the account")
    async def get_me(
        self, identity: NamedDependency[Identity], accounts: NamedDependency[AccountService]
    ) -> UserView:
        """The account that asks."""
        return UserView.from_user(identity.user, accounts.name_of(identity))

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
        """Set `key_mode`. Null restores the default, `per_job`.

        It controls when background work after a reply can run. `per_job`: each job contains your
        key for at most a day, so it can finish while you are away. `managed`: the server keeps your
        key under its root key until you have been away for 30 days. Only a session can set it.
        `sealed`: work runs only while you are active.
        """
        user = await profile.patch_account(identity, data)
        if user.key_mode != identity.key_mode:
            await activity.note(request, "key_mode_changed", detail=user.key_mode)
        return UserView.from_user(user, accounts.name_of(identity))

    @delete(
        opt={RAISES: (*CONFIRMATION_ERRORS, LastAdministratorError)}, summary="Delete the account"
    )
    async def delete_me(
        self,
        request: AnyRequest,
        data: JSONBody[Confirmation],
        identity: NamedDependency[Identity],
        accounts: NamedDependency[AccountService],
    ) -> Response[None]:
        """Delete the account. Its keys are deleted first, so that nothing stays readable."""
        await accounts.confirm_password(identity, data.password)
        await accounts.delete(identity.user_id)
        return Response(None, cookies=make_expired_cookies(request))

    @post(
        "/password",
        status_code=204,
        opt={RAISES: (*CONFIRMATION_ERRORS, WeakPasswordError, KeysChangedError)},
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
        """Change the password and the keys. Other sessions end. API keys keep working."""
        await accounts.change_password(identity, data.current_password, data.new_password)
        await activity.note(request, "password_changed")

    @post(
        "/rotate-key",
        status_code=204,
        opt={RAISES: (*CONFIRMATION_ERRORS, TooManyDataKeysError, KeysChangedError)},
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
        """Replace the user key, and add a data key for new texts.

        Use it if the keys may have been read from the server's memory. The password, the recovery
        code, sessions and API keys stay valid. Existing texts stay under their data keys.
        `talekeeper rotate-keys data` seals them again.
        """
        if identity.kind != "session":
            raise ForbiddenError("API keys cannot rotate the account's keys. Sign in to do it.")
        await accounts.confirm_password(identity, data.password)
        await accounts.renew(identity.user_id, identity.current)
        await activity.note(request, "key_rotated")

    @post(
        "/recovery-code",
        opt={SHOWN_ONCE: True, RAISES: (*CONFIRMATION_ERRORS, KeysChangedError)},
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
        """Make a new recovery code. The old one stops working."""
        code = await accounts.replace_recovery_code(identity, data.password)
        await activity.note(request, "recovery_code_made")
        return RecoveryCode(recovery_code=code)

    @get("/settings", opt={NEEDS: "read"}, summary="Read settings")
    async def get_settings(self, identity: NamedDependency[Identity]) -> Response[UserSettings]:
        """The default settings of the account's chats."""
        return tag_body(identity.settings, identity.user.settings_revision)

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
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        profile: NamedDependency[ProfileService],
        if_match: IfMatch = None,
    ) -> Response[UserSettings]:
        """Merge a patch into the settings. Absent fields stay, and null restores the default."""
        settings, revision = await profile.patch_settings(identity, data, if_match=if_match)
        return tag_body(settings, revision)


class ActivityController(Controller):
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

        The latest 1,000 entries are kept for a year, and their addresses for 30 days. Wrong
        passwords are not listed, because without the password there is no key to seal an entry
        with.
        """
        return await activity.list_entries(identity, after=after, limit=limit)
