"""The place of a turn in the message tree, who may know its messages, and its viewpoint."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.snapshot import PlayedEntities
from backend.campaigns.state.viewpoints import (
    check_chat_audience,
    find_players_viewpoint,
    resolve_viewpoint,
)
from backend.chats import repository as chats
from backend.chats.members import filter_heard, find_last_line, has_heard
from backend.chats.models import Chat, Message
from backend.core.audience import (
    GM,
    PUBLIC,
    Viewpoint,
    Witness,
    encode_audience,
    may_know,
    read_viewpoint,
)
from backend.errors import ValidationError
from backend.turns.api.schemas import TurnRequest
from backend.turns.errors import NotContinuableError, NothingToAnswerError
from backend.turns.prompt.context import TurnTarget
from backend.turns.prompt.speaker_choice import find_spoken_line
from backend.vault.sealing import OVERHEAD, Sealer


async def find_target(
    session: AsyncSession,
    chat: Chat,
    leaf: Message | None,
    request: TurnRequest,
    *,
    is_preview: bool,
    may_follow: bool,
) -> TurnTarget:
    """Return the place in the message tree that a request refers to. `leaf` ends the active path.

    A preview may have nothing to answer. If a reply `may_follow` another one, the chat chooses its
    speaker. Raises `MessageNotFoundError`, `NothingToAnswerError`,
    `NotContinuableError`, `ValidationError`.
    """
    _check_request(request)
    if request.regenerate_of is not None:
        return await _find_regeneration(session, chat, request.regenerate_of)
    last = await find_last_line(session, leaf)
    if last is not None and last.status == "streaming":
        # A reply that is still being written cannot be answered. Storing the turn will return the
        # 409.
        leaf = await _load_parent(session, last)
        last = await find_last_line(session, leaf)
    if request.continue_:
        if last is None or last.role != "assistant":
            raise NotContinuableError("The last message was not written by a character.")
        if len(last.sealed_content) == OVERHEAD:
            # The reply has thoughts but no text to continue, so it is written from its beginning.
            fresh = await _make_rewrite_target(session, last)
            return replace(fresh, kind="continue", continued=last)
        return TurnTarget(
            kind="continue",
            line_kind="continue",
            leaf=last,
            continued=last,
            spoken_by=last.character_id,
            audience=last.audience,
        )
    if request.impersonate:
        return TurnTarget(kind="impersonate", line_kind="impersonate", leaf=leaf)
    if request.text is not None:
        return TurnTarget(kind="reply", line_kind="user_line", leaf=leaf)
    is_allowed = may_follow or is_preview or request.speaker is not None
    return await _find_unanswered(session, leaf, last, is_preview=is_preview, may_follow=is_allowed)


async def _find_unanswered(
    session: AsyncSession,
    leaf: Message | None,
    last: Message | None,
    *,
    is_preview: bool,
    may_follow: bool,
) -> TurnTarget:
    """Return the target that follows `leaf`. `last` is the last line up to it."""
    if last is None:
        return TurnTarget(kind="reply", line_kind="opening", leaf=leaf, parent=leaf)
    if last.role == "user":
        return TurnTarget(
            kind="reply",
            line_kind="user_line",
            leaf=await _load_parent(session, last),
            line=last,
            parent=leaf,
            audience=last.audience,
        )
    spoken = await find_spoken_line(session, leaf)
    if is_preview:
        # The user has typed nothing yet: preview the prompt without a line.
        return TurnTarget(kind="reply", line_kind="user_line", leaf=leaf, spoken=spoken)
    if not may_follow:
        raise NothingToAnswerError(
            "Send `text`, or `continue` to continue the last reply, or `regenerate_of`, or "
            "`speaker` to choose a character to reply."
        )
    return TurnTarget(
        kind="reply",
        line_kind="next",
        leaf=leaf,
        parent=leaf,
        spoken=spoken,
        audience=spoken.audience if spoken else PUBLIC,
    )


async def _find_regeneration(session: AsyncSession, chat: Chat, message_id: UUID) -> TurnTarget:
    message = await chats.get_message(session, message_id, owner_id=chat.user_id)
    if message.chat_id != chat.id:
        raise ValidationError("regenerate_of belongs to another chat.")
    if message.role != "assistant":
        raise ValidationError("regenerate_of is not a message of a character.")
    if not message.is_active:
        raise ValidationError(
            "regenerate_of is on another branch. Activate it first: the prompt is built from the "
            "active path."
        )
    return await _make_rewrite_target(session, message)


async def _make_rewrite_target(session: AsyncSession, message: Message) -> TurnTarget:
    """Return the target of a reply that is written from its beginning."""
    parent = await _load_parent(session, message)
    last = await find_last_line(session, parent)
    line = last if last is not None and last.role == "user" else None
    return TurnTarget(
        kind="regenerate",
        line_kind="user_line" if line else "next" if last else "opening",
        leaf=await _load_parent(session, line) if line else parent,
        line=line,
        parent=parent,
        spoken_by=message.character_id,
        audience=message.audience,
    )


async def _load_parent(session: AsyncSession, message: Message | None) -> Message | None:
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
        raise ValidationError(f"Send only one of {', '.join(asked)}.")


async def follow_briefing(
    session: AsyncSession, target: TurnTarget, viewpoint: Viewpoint
) -> TurnTarget:
    """Return the target for a character that joined after the line, or was briefed after it.

    It does not answer the line, but speaks next.
    """
    line, parent = target.line, target.parent
    if line is None or parent is None or parent.id == line.id:
        return target
    if not isinstance(viewpoint, Witness):
        return target
    is_told = select(Message.id).where(
        Message.chat_id == line.chat_id,
        Message.is_active,
        Message.position > line.position,
        Message.position <= parent.position,
        ~Message.hidden,
        filter_heard(viewpoint, line.chat_id),
    )
    has_heard_line = viewpoint.has_heard(line.chat_id, line.position, line.audience)
    if has_heard_line and await session.scalar(is_told.limit(1)) is None:
        return target
    audience = target.audience if target.kind == "regenerate" else PUBLIC
    return replace(target, line_kind="next", leaf=parent, line=None, audience=audience)


async def find_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, request: TurnRequest, target: TurnTarget
) -> str:
    """Return the audience of the messages that the turn stores.

    Raises `ValidationError`, `MemberAbsentError`.
    """
    if request.audience is None:
        return target.audience
    if request.continue_ or request.impersonate:
        raise ValidationError("`audience` is allowed only with a new message or a new reply.")
    await check_chat_audience(session, sealer, chat, request.audience, position=target.position)
    return encode_audience(request.audience)


async def find_viewpoint(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    request: TurnRequest,
    user_name: str,
    *,
    usual: str | None,
    played: PlayedEntities | None,
) -> Viewpoint:
    """Return the requested viewpoint, or the `usual` viewpoint of the chat.

    Raises `ValidationError` for an id of neither a member nor an entity, or if a player's line
    would use the game master's knowledge.
    """
    players: Viewpoint = GM
    if request.impersonate and chat.campaign_id is not None:
        players = await find_players_viewpoint(session, identity, chat.campaign_id, user_name)
    wanted = request.viewpoint
    if wanted is None and not request.impersonate:
        wanted = usual
    asked = players if wanted is None else read_viewpoint(wanted)
    if asked == GM and players != GM:
        raise ValidationError(
            "The campaign has hidden information: the user's message cannot be written with what "
            "only the game master knows."
        )
    return await resolve_viewpoint(session, identity, chat, asked, played=played)


def check_answerable(
    target: TurnTarget, viewpoint: Viewpoint, said: str, *, is_preview: bool
) -> TurnTarget:
    """Return the target if the viewpoint knows the line. `said` is the audience of a new line.

    A preview leaves out a line that the viewpoint does not know. Raises `ValidationError`.
    """
    about = target.line or target.continued
    if not may_know(viewpoint, said):
        raise ValidationError("`audience` must include `viewpoint`.")
    if about is None or has_heard(viewpoint, about.chat_id, about.position, about.audience):
        return target
    if is_preview and target.line is not None:
        return replace(target, line=None)
    raise ValidationError("`viewpoint` is not allowed to know the message of this turn.")
