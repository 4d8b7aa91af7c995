"""Where in a chat's tree a turn works."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import (
    check_chat_audience,
    check_viewpoint,
    find_players_viewpoint,
)
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.core.audience import GM, PUBLIC, Viewpoint, encode_audience, may_know, read_viewpoint
from backend.errors import ValidationError
from backend.turns.api.schemas import TurnRequest
from backend.turns.errors import NotContinuableError, NothingToAnswerError
from backend.turns.models import TurnKind
from backend.vault.sealing import OVERHEAD

LineKind = Literal["user_line", "continue", "impersonate", "opening", "next"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a turn works in the tree.

    `leaf` ends the history; None before the first message. `line` is the message that stands as
    the user's line, when it is stored already. `parent` is what the reply will hang below when no
    new line is stored. `continued` is the reply that goes on. `spoken_by` is whose reply goes on or
    is written anew. `audience` is that of what is answered, gone on with or written anew, as its
    column holds it.
    """

    kind: TurnKind
    line_kind: LineKind
    leaf: Message | None
    line: Message | None = None
    parent: Message | None = None
    continued: Message | None = None
    spoken_by: UUID | None = None
    audience: str = PUBLIC

    @property
    def rewritten(self) -> int | None:
        """The position of the reply that is written anew."""
        if self.kind != "regenerate":
            return None
        return self.parent.position + 1 if self.parent else 0


async def find_target(
    session: AsyncSession,
    chat: Chat,
    leaf: Message | None,
    request: TurnRequest,
    *,
    is_preview: bool,
) -> Target:
    """The place in a chat's tree that a request means; `leaf` ends its active path.

    A preview need not have anything to answer. Raises `MessageNotFoundError`,
    `NothingToAnswerError`, `NotContinuableError`, `ValidationError`.
    """
    _check_request(request)
    if request.regenerate_of is not None:
        return await _regeneration(session, chat, request.regenerate_of)
    if leaf is not None and leaf.status == "streaming":
        # What was said so far is no line to build on yet; storing will give the 409.
        leaf = await _parent(session, leaf)
    if request.continue_:
        if leaf is None or leaf.role != "assistant":
            raise NotContinuableError("The last message is not a character's.")
        if len(leaf.sealed_content) == OVERHEAD:
            # Thoughts alone: there is no text to continue, so it is written from its beginning.
            fresh = await _rewriting(session, leaf)
            return replace(fresh, kind="continue", continued=leaf)
        return Target(
            kind="continue",
            line_kind="continue",
            leaf=leaf,
            continued=leaf,
            spoken_by=leaf.character_id,
            audience=leaf.audience,
        )
    if request.impersonate:
        return Target(kind="impersonate", line_kind="impersonate", leaf=leaf)
    if request.text is not None:
        return Target(kind="reply", line_kind="user_line", leaf=leaf)
    return await _unanswered(session, leaf, request, is_preview=is_preview)


async def _unanswered(
    session: AsyncSession, leaf: Message | None, request: TurnRequest, *, is_preview: bool
) -> Target:
    """What a reply without a new line answers."""
    if leaf is None:
        return Target(kind="reply", line_kind="opening", leaf=None)
    if leaf.role == "user":
        above = await _parent(session, leaf)
        return Target(
            kind="reply",
            line_kind="user_line",
            leaf=above,
            line=leaf,
            parent=leaf,
            audience=leaf.audience,
        )
    if is_preview:
        # Nothing typed yet: the same prompt, with no line in it.
        return Target(kind="reply", line_kind="user_line", leaf=leaf)
    if request.speaker is None:
        raise NothingToAnswerError(
            "Send `text`, or `continue` to go on with the last reply, or `regenerate_of`, or "
            "`speaker` to let a character speak."
        )
    return Target(kind="reply", line_kind="next", leaf=leaf, parent=leaf)


async def _regeneration(session: AsyncSession, chat: Chat, message_id: UUID) -> Target:
    message = await chats.get_message(session, message_id, owner_id=chat.user_id)
    if message.chat_id != chat.id:
        raise ValidationError("regenerate_of is a message of another chat.")
    if message.role != "assistant":
        raise ValidationError("regenerate_of is not a character's message.")
    if not message.is_active:
        raise ValidationError(
            "regenerate_of is on another branch. Activate it first: the prompt is made of the "
            "active path."
        )
    return await _rewriting(session, message)


async def _rewriting(session: AsyncSession, message: Message) -> Target:
    """The target of a reply that is written from its beginning."""
    parent = await _parent(session, message)
    answers = parent is not None and parent.role == "user"
    return Target(
        kind="regenerate",
        line_kind="user_line" if answers else "next" if parent else "opening",
        leaf=await _parent(session, parent) if answers else parent,
        line=parent if answers else None,
        parent=parent,
        spoken_by=message.character_id,
        audience=message.audience,
    )


async def _parent(session: AsyncSession, message: Message | None) -> Message | None:
    if message is None or message.parent_id is None:
        return None
    return await session.get(Message, message.parent_id)


def _check_request(request: TurnRequest) -> None:
    asked = [
        name
        for name, given in (
            ("text", request.text is not None),
            ("regenerate_of", request.regenerate_of is not None),
            ("continue", request.continue_),
            ("impersonate", request.impersonate),
        )
        if given
    ]
    if len(asked) > 1:
        raise ValidationError(f"Send one of {', '.join(asked)}, not several.")


async def find_audience(
    session: AsyncSession, chat: Chat, request: TurnRequest, target: Target
) -> str:
    """Who may know what the turn stores, as a column holds it. Raises `ValidationError`."""
    if request.audience is None:
        return target.audience
    if request.continue_ or request.impersonate:
        raise ValidationError("`audience` goes with a new line or a new reply.")
    await check_chat_audience(session, chat, request.audience)
    return encode_audience(request.audience)


async def find_viewpoint(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    request: TurnRequest,
    user_name: str,
    *,
    usual: str | None,
) -> Viewpoint:
    """Whose knowledge the prompt may hold: as asked, or the chat's `usual` viewpoint.

    Raises `ValidationError` for an entity that the chat's campaign does not have, and where a
    player's line would be written with what only the game master knows.
    """
    players: Viewpoint = GM
    if request.impersonate and chat.campaign_id is not None:
        players = await find_players_viewpoint(session, identity, chat.campaign_id, user_name)
    wanted = request.viewpoint
    if wanted is None and not request.impersonate and chat.campaign_id is not None:
        wanted = usual
    if wanted is None:
        return players
    asked = read_viewpoint(wanted)
    if asked == GM and players != GM:
        raise ValidationError(
            "The campaign has hidden information: the user's line can't be written with what "
            "only the game master knows."
        )
    await check_viewpoint(session, asked, [chat.campaign_id], owner_id=identity.user_id)
    return asked


def answerable(target: Target, viewpoint: Viewpoint, said: str, *, is_preview: bool) -> Target:
    """The target, if the viewpoint may know what the turn is about; `said` is the new line's.

    A preview leaves a line out that it may not know. Raises `ValidationError`.
    """
    about = target.line or target.continued
    if not may_know(viewpoint, said):
        raise ValidationError("`audience` keeps the line from `viewpoint`.")
    if about is None or may_know(viewpoint, about.audience):
        return target
    if is_preview and target.line is not None:
        return replace(target, line=None)
    raise ValidationError("`viewpoint` may not know the message that the turn is about.")
