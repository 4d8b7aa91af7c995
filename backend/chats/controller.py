"""Chats and their messages: `/chats`, `/messages`."""

from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.chats.errors import (
    ChatNotFoundError,
    EmptyMessageError,
    MemberAbsentError,
    MessageBusyError,
    MessageNotFoundError,
    MessageTooLongError,
    NotOnlyThoughtsError,
    PresenceMessageError,
)
from backend.chats.messages import MessageService
from backend.chats.schemas import (
    Activation,
    ChatSettings,
    ChatView,
    Deleted,
    Fork,
    MessagePage,
    MessagePatch,
    MessageView,
)
from backend.chats.service import ChatService
from backend.errors import BadRequestError, PreconditionFailedError
from backend.generation.registry import UnknownModelError
from backend.generation.sampling import SettingNotTakenError
from backend.http.schemas import (
    COMMON_RAISES,
    EXAMPLE,
    PATCHES,
    RAISES,
    STORES,
    IfMatch,
    IfNoneMatch,
    Page,
    PageSize,
    PlaceCursor,
    is_current,
    make_unchanged,
    tag_body,
    tag_view,
)

Caller = NamedDependency[Identity]
Chats = NamedDependency[ChatService]
Messages = NamedDependency[MessageService]


class ChatController(Controller):
    """Chats and their settings."""

    path = "/chats"
    tags = ("Chats",)

    @get(summary="List chats")
    async def list_chats(
        self,
        identity: Caller,
        chats: Chats,
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
        character_id: FromQuery[UUID | None] = None,
        archived: FromQuery[bool | None] = None,
    ) -> Page[ChatView]:
        """List the chats of one character or of all, newest first.

        With `archived: true` only archived chats, with `archived: false` only the others.
        """
        return await chats.list_chats(
            identity, limit=limit, after=after, character_id=character_id, archived=archived
        )

    @get("/{chat_id:uuid}", opt={RAISES: (ChatNotFoundError,)}, summary="Read a chat")
    async def get_chat(
        self, chat_id: FromPath[UUID], identity: Caller, chats: Chats
    ) -> Response[ChatView]:
        """Return a chat. Its messages are at `/chats/{chat_id}/messages`."""
        return tag_view(await chats.get(identity, chat_id))

    @delete("/{chat_id:uuid}", opt={RAISES: (ChatNotFoundError,)}, summary="Delete a chat")
    async def delete_chat(self, chat_id: FromPath[UUID], identity: Caller, chats: Chats) -> None:
        """Delete a chat with all its messages, on all branches."""
        await chats.delete(identity, chat_id)

    @get("/{chat_id:uuid}/settings", opt={RAISES: (ChatNotFoundError,)}, summary="Read settings")
    async def get_chat_settings(
        self, chat_id: FromPath[UUID], identity: Caller, chats: Chats
    ) -> Response[ChatSettings]:
        """Return the settings of this chat. An absent member takes the account's value."""
        settings, revision = await chats.read_settings(identity, chat_id)
        return tag_body(settings, revision)

    @patch(
        "/{chat_id:uuid}/settings",
        opt={
            RAISES: (
                ChatNotFoundError,
                UnknownModelError,
                SettingNotTakenError,
                PreconditionFailedError,
            ),
            PATCHES: ChatSettings,
            EXAMPLE: {"authors_note": {"text": "It rains.", "depth": 4}, "model": None},
        },
        summary="Change settings",
    )
    async def patch_chat_settings(
        self,
        chat_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: Caller,
        chats: Chats,
        if_match: IfMatch = None,
    ) -> Response[ChatSettings]:
        """Merge a patch into the settings. Null restores the account's value."""
        settings, revision = await chats.patch_settings(identity, chat_id, data, if_match=if_match)
        return tag_body(settings, revision)

    @get(
        "/{chat_id:uuid}/messages",
        opt={RAISES: (ChatNotFoundError,)},
        summary="Read the active path",
    )
    async def list_messages(
        self,
        chat_id: FromPath[UUID],
        identity: Caller,
        messages: Messages,
        limit: PageSize = 50,
        before: PlaceCursor = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response[MessagePage]:
        """Return the end of the active path, newest last, or the messages above `before`.

        The `ETag` changes with the messages of the path. Send it as `If-None-Match` to find out if
        another client has changed them: without a change the response is 304. It does not change
        while a reply grows, and for changes on other branches.
        """
        # Read before the messages, so that a tag is never newer than they are.
        tag = await messages.find_path_tag(identity, chat_id)
        if is_current(if_none_match, tag):
            return make_unchanged({"ETag": tag})
        page = await messages.page(identity, chat_id, before=before, limit=limit)
        return Response(page, headers={"ETag": tag})

    @post(
        "/{chat_id:uuid}/fork",
        opt={RAISES: (ChatNotFoundError, MessageNotFoundError, MessageBusyError)},
        summary="Copy a branch to a new chat",
    )
    async def fork_chat(
        self, chat_id: FromPath[UUID], data: JSONBody[Fork], identity: Caller, chats: Chats
    ) -> ChatView:
        """Copy the path that ends at a message into a new chat.

        With `world: copy` the new chat also gets a copy of the campaign.
        """
        return await chats.fork(
            identity, chat_id, message_id=data.message_id, title=data.title, world=data.world
        )

    @post(
        "/{chat_id:uuid}/duplicate",
        opt={RAISES: (ChatNotFoundError, MessageBusyError)},
        summary="Duplicate a chat",
    )
    async def duplicate_chat(
        self, chat_id: FromPath[UUID], identity: Caller, chats: Chats
    ) -> ChatView:
        """Copy a chat with all branches, swipes, files and settings. The title says it is a copy.

        The copy of a campaign's chat stays in the campaign.
        """
        return await chats.duplicate(identity, chat_id)


class MessageController(Controller):
    """Messages of a chat's tree."""

    path = "/messages/{message_id:uuid}"
    tags = ("Chats",)
    opt = {COMMON_RAISES: (MessageNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="Read a message")
    async def get_message(
        self, message_id: FromPath[UUID], identity: Caller, messages: Messages
    ) -> MessageView:
        """Return a message, on the active path or not."""
        return await messages.get(identity, message_id)

    @patch(
        opt={
            RAISES: (
                EmptyMessageError,
                MessageTooLongError,
                MessageBusyError,
                PresenceMessageError,
                MemberAbsentError,
            )
        },
        summary="Edit or hide a message, or set its audience",
    )
    async def patch_message(
        self,
        message_id: FromPath[UUID],
        data: JSONBody[MessagePatch],
        identity: Caller,
        messages: Messages,
    ) -> MessageView:
        """Add an edited sibling (`text`), hide or show a message, or set its audience.

        `text` makes the new sibling active. A `hidden` message is left out of prompts. `audience`
        is who may know it: `public`, `gm`, or ids of characters of the chat or of entities of its
        campaign. A change of presence can only be deleted.
        """
        audience = None if data.audience is msgspec.UNSET else data.audience
        match data:
            case MessagePatch(text=str(text), hidden=msgspec.UNSET):
                return await messages.edit(identity, message_id, text, audience)
            case MessagePatch(text=msgspec.UNSET, hidden=bool(hidden), audience=msgspec.UNSET):
                return await messages.hide(identity, message_id, hidden=hidden)
            case MessagePatch(text=msgspec.UNSET, hidden=msgspec.UNSET) if audience is not None:
                return await messages.set_audience(identity, message_id, audience)
            case _:
                raise BadRequestError("Send either `text`, `hidden` or `audience`.")

    @post(
        "/thoughts-as-text",
        status_code=200,
        opt={RAISES: (MessageBusyError, NotOnlyThoughtsError, PresenceMessageError)},
        summary="Use a reply's thoughts as its text",
    )
    async def use_thoughts(
        self, message_id: FromPath[UUID], identity: Caller, messages: Messages
    ) -> MessageView:
        """Use the thoughts of a reply without text as its text.

        Some servers report a whole reply as thoughts. Such a reply is kept, but hidden from models.
        """
        return await messages.use_thoughts(identity, message_id)

    @delete(
        status_code=200,
        opt={RAISES: (MessageBusyError, PresenceMessageError)},
        summary="Delete a message",
    )
    async def delete_message(
        self,
        message_id: FromPath[UUID],
        identity: Caller,
        messages: Messages,
        alone: FromQuery[bool] = False,  # noqa: FBT002  # Litestar passes it by name
    ) -> Deleted:
        """Delete a message and all messages below it, on every branch.

        With `alone`, only its text and everything made from it are deleted. The messages below it
        and its swipes stay, and so does its empty place in the tree (`removed`). A change of
        presence cannot be deleted alone.
        """
        if alone:
            return await messages.remove(identity, message_id)
        return await messages.delete(identity, message_id)

    @get("/siblings", summary="List swipes")
    async def list_siblings(
        self,
        message_id: FromPath[UUID],
        identity: Caller,
        messages: Messages,
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[MessageView]:
        """List a message and its swipes, oldest first."""
        return await messages.siblings(identity, message_id, after=after, limit=limit)

    @post(
        "/activate",
        status_code=200,
        opt={
            STORES: False,
        },
        summary="Choose a branch",
    )
    async def activate_message(
        self,
        message_id: FromPath[UUID],
        identity: Caller,
        messages: Messages,
        data: JSONBody[Activation | None] = None,
    ) -> MessageView:
        """Move the active path through a message. With `follow: false` the path ends there."""
        follow = data.follow if data else True
        return await messages.activate(identity, message_id, follow=follow)
