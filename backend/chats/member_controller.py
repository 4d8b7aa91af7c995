"""The members of a chat: `/chats/{chat_id}/members`."""

from uuid import UUID

from litestar import Controller, get, patch
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.auth.identity import Identity
from backend.chats.errors import (
    ChatNotFoundError,
    EmptyMessageError,
    MemberNotFoundError,
    MessageBusyError,
    MessageTooLongError,
    TooManyMembersError,
)
from backend.chats.member_service import MemberService
from backend.chats.schemas import MemberPatch, MemberView
from backend.http.schemas import COMMON_RAISES, EXAMPLE, RAISES

Caller = NamedDependency[Identity]
Members = NamedDependency[MemberService]


class MemberController(Controller):
    """Members of a chat, and their presence."""

    path = "/chats/{chat_id:uuid}/members"
    tags = ("Chats",)
    opt = {COMMON_RAISES: (ChatNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List members")
    async def list_members(
        self, chat_id: FromPath[UUID], identity: Caller, members: Members
    ) -> list[MemberView]:
        """List the characters of a chat with their presence at the end of the active path."""
        return await members.list_members(identity, chat_id)

    @patch(
        "/{character_id:uuid}",
        opt={
            RAISES: (
                MemberNotFoundError,
                MessageBusyError,
                EmptyMessageError,
                MessageTooLongError,
                TooManyMembersError,
            ),
            EXAMPLE: {"presence": "present"},
        },
        summary="Change a member's presence",
    )
    async def patch_member(
        self,
        chat_id: FromPath[UUID],
        character_id: FromPath[UUID],
        data: JSONBody[MemberPatch],
        identity: Caller,
        members: Members,
    ) -> list[MemberView]:
        """Let a character join, leave, be muted, or speak again.

        A message at the end of the path records it, so that swipes and branches undo it. A
        character that joins knows nothing from before, except the `briefing`, which only it knows.
        A presence that is the same changes nothing. Returns all members.
        """
        return await members.patch(identity, chat_id, character_id, data)
