"""Accounts and invitations, for administrators: `/admin`."""

from datetime import timedelta
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody
from sqlalchemy import delete as delete_rows
from sqlalchemy import select

from backend.accounts import repository
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS, SHOWN_ONCE
from backend.accounts.auth.names import InstanceKeys
from backend.accounts.errors import (
    InvitationNotFoundError,
    LastAdministratorError,
    UserNotFoundError,
)
from backend.accounts.models import Invitation, User
from backend.accounts.schemas import InvitationView, NewInvitation, UserChange, UserView
from backend.accounts.service import INVITATION_PREFIX
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ForbiddenError
from backend.http.schemas import RAISES, AnyConnection, Page, PageSize, make_page
from backend.vault.slots import hash_for_lookup, make_token


class AdministrationService:
    def __init__(self, database: Database, instance: InstanceKeys) -> None:
        self._database = database
        self._instance = instance

    async def list_users(self, *, after: UUID | None, limit: int) -> Page[UserView]:
        query = select(User).where(User.deleted_at.is_(None)).order_by(User.id).limit(limit + 1)
        if after is not None:
            query = query.where(User.id > after)
        async with self._database.read() as session:
            users, following = make_page(list(await session.scalars(query)), limit)
        return Page(items=[self._view(user) for user in users], next=following)

    async def change_user(self, user_id: UUID, change: UserChange) -> UserView:
        """Change an account's rights. Raises `UserNotFoundError`, `LastAdministratorError`."""
        async with self._database.write() as session:
            await repository.lock_accounts(session)
            user = await repository.get_user(session, user_id)
            if change.is_administrator is not msgspec.UNSET:
                user.is_administrator = change.is_administrator
            if change.is_disabled is not msgspec.UNSET:
                user.is_disabled = change.is_disabled
            await session.flush()
            if await repository.count_administrators(session) == 0:
                raise LastAdministratorError("At least one administrator must remain.")
            if user.is_disabled:
                await repository.delete_slots(session, user_id, "session")
        return self._view(user)

    async def invite(self, identity: Identity, *, days: int) -> InvitationView:
        """Make an invitation. Its code is not stored."""
        code, secret = make_token(INVITATION_PREFIX)
        invitation = Invitation(
            created_by=identity.user_id,
            lookup=hash_for_lookup(secret),
            expires_at=now() + timedelta(days=days),
        )
        async with self._database.write() as session:
            session.add(invitation)
        return _make_invitation_view(invitation, code=code)

    async def list_invitations(self, *, after: UUID | None, limit: int) -> Page[InvitationView]:
        query = select(Invitation).order_by(Invitation.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(Invitation.id < after)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
        return Page(items=[_make_invitation_view(row) for row in rows], next=following)

    async def withdraw_invitation(self, invitation_id: UUID) -> None:
        """Raises `InvitationNotFoundError`."""
        query = delete_rows(Invitation).where(Invitation.id == invitation_id)
        async with self._database.write() as session:
            if await session.scalar(query.returning(Invitation.id)) is None:
                raise InvitationNotFoundError

    def _view(self, user: User) -> UserView:
        return UserView.from_user(user, self._instance.read_name(user))


def _make_invitation_view(row: Invitation, *, code: str | None = None) -> InvitationView:
    return InvitationView(
        id=row.id,
        created_at=row.created_at,
        expires_at=row.expires_at,
        used_at=row.used_at,
        code=code,
    )


def require_administrator(connection: AnyConnection, _: BaseRouteHandler) -> None:
    identity: Identity | None = connection.scope["user"]
    if identity is None or not identity.user.is_administrator:
        raise ForbiddenError("Only an administrator may do this.")


class AdministrationController(Controller):
    path = "/admin"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get("/users", summary="List accounts")
    async def list_users(
        self,
        administration: NamedDependency[AdministrationService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[UserView]:
        """All accounts, oldest first."""
        return await administration.list_users(after=after, limit=limit)

    @patch(
        "/users/{user_id:uuid}",
        opt={RAISES: (UserNotFoundError, LastAdministratorError)},
        summary="Change an account",
    )
    async def change_user(
        self,
        user_id: FromPath[UUID],
        data: JSONBody[UserChange],
        administration: NamedDependency[AdministrationService],
    ) -> UserView:
        """Make a user an administrator, or disable an account. Disabling ends its sessions."""
        return await administration.change_user(user_id, data)

    @get("/invitations", summary="List invitations")
    async def list_invitations(
        self,
        administration: NamedDependency[AdministrationService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[InvitationView]:
        """All invitations, newest first. Their codes are not stored."""
        return await administration.list_invitations(after=after, limit=limit)

    @post("/invitations", opt={SHOWN_ONCE: True}, summary="Create an invitation")
    async def invite(
        self,
        data: JSONBody[NewInvitation],
        identity: NamedDependency[Identity],
        administration: NamedDependency[AdministrationService],
    ) -> InvitationView:
        """Make a code that lets one person sign up. It is shown only once."""
        return await administration.invite(identity, days=data.days)

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
        """Delete an invitation. Its code stops working."""
        await administration.withdraw_invitation(invitation_id)
