"""Accounts and invitations, for administrators: `/admin`."""

from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.errors import (
    InvitationNotFoundError,
    LastAdministratorError,
    UserNotFoundError,
)
from backend.accounts.identity import Identity
from backend.accounts.middleware import NEEDS, SHOWN_ONCE
from backend.accounts.models import Invitation
from backend.accounts.names import InstanceKeys
from backend.accounts.profile import AdministrationService
from backend.accounts.schemas import InvitationView, NewInvitation, UserChange, UserView
from backend.errors import ForbiddenError
from backend.wire import RAISES, Page, PageSize


def administrators_only(
    connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler
) -> None:
    """Raise `ForbiddenError` for everybody else."""
    identity: Identity | None = connection.scope["user"]
    if identity is None or not identity.is_administrator:
        raise ForbiddenError("Only an administrator may do this.")


class AdministrationController(Controller):
    """Accounts and invitations, for administrators. They can't read anyone's texts."""

    path = "/admin"
    tags = ("Administration",)
    guards = (administrators_only,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get("/users", operation_id="listUsers", summary="List accounts")
    async def list_users(
        self,
        administration: NamedDependency[AdministrationService],
        instance: NamedDependency[InstanceKeys],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[UserView]:
        """All accounts, oldest first."""
        users, following = await administration.list_users(after=after, limit=limit)
        return Page(
            next=following,
            items=[
                UserView.of(user, instance.unwrap_name(user.id, user.wrapped_name))
                for user in users
            ],
        )

    @patch(
        "/users/{user_id:uuid}",
        opt={RAISES: (UserNotFoundError, LastAdministratorError)},
        operation_id="changeUser",
        summary="Change an account",
    )
    async def change_user(
        self,
        user_id: FromPath[UUID],
        data: JSONBody[UserChange],
        administration: NamedDependency[AdministrationService],
        instance: NamedDependency[InstanceKeys],
    ) -> UserView:
        """Make somebody an administrator, or keep somebody out. Disabling ends the sessions."""
        user = await administration.change_user(
            user_id,
            is_administrator=_named(data.is_administrator),
            is_disabled=_named(data.is_disabled),
        )
        return UserView.of(user, instance.unwrap_name(user.id, user.wrapped_name))

    @get("/invitations", operation_id="listInvitations", summary="List invitations")
    async def list_invitations(
        self,
        administration: NamedDependency[AdministrationService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[InvitationView]:
        """All invitations, newest first; the codes are not kept."""
        rows, following = await administration.list_invitations(after=after, limit=limit)
        return Page(items=[_invitation_view(row) for row in rows], next=following)

    @post("/invitations", opt={SHOWN_ONCE: True}, operation_id="invite", summary="Invite somebody")
    async def invite(
        self,
        data: JSONBody[NewInvitation],
        identity: NamedDependency[Identity],
        administration: NamedDependency[AdministrationService],
    ) -> InvitationView:
        """Make a code with which one person can sign up. It is shown this once."""
        code, row = await administration.invite(identity, days=data.days)
        return _invitation_view(row, code=code)

    @delete(
        "/invitations/{invitation_id:uuid}",
        opt={RAISES: (InvitationNotFoundError,)},
        operation_id="withdrawInvitation",
        summary="Withdraw an invitation",
    )
    async def withdraw(
        self,
        invitation_id: FromPath[UUID],
        administration: NamedDependency[AdministrationService],
    ) -> None:
        """The code no longer works."""
        await administration.withdraw_invitation(invitation_id)


def _named(value: bool | msgspec.UnsetType) -> bool | None:  # noqa: FBT001  # a member's value
    return None if value is msgspec.UNSET else value


def _invitation_view(row: Invitation, *, code: str | None = None) -> InvitationView:
    return InvitationView(
        id=row.id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        used_at=row.used_at,
        code=code,
    )
