"""Whose knowledge a turn's prompt may hold, and who may know what the turn stores."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.audience import GM, Viewpoint, is_known_to, read_viewpoint, stored
from backend.campaigns.viewpoints import check_chat_audience, check_viewpoint, players_viewpoint
from backend.chats.models import Chat
from backend.errors import ValidationError
from backend.turns.schemas import TurnRequest
from backend.turns.target import Target


async def find_audience(
    session: AsyncSession, chat: Chat, request: TurnRequest, target: Target
) -> str:
    """Who may know what the turn stores, as a column holds it. Raises `ValidationError`."""
    if request.audience is None:
        return target.audience
    if request.continue_ or request.impersonate:
        raise ValidationError("`audience` is allowed only with a new message or a new reply.")
    await check_chat_audience(session, chat, request.audience)
    return stored(request.audience)


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
        players = await players_viewpoint(session, identity, chat.campaign_id, user_name)
    wanted = request.viewpoint
    if wanted is None and not request.impersonate and chat.campaign_id is not None:
        wanted = usual
    if wanted is None:
        return players
    asked = read_viewpoint(wanted)
    if asked == GM and players != GM:
        raise ValidationError(
            "The campaign has hidden information: the user's message cannot be written with what "
            "only the game master knows."
        )
    await check_viewpoint(session, asked, [chat.campaign_id], owner_id=identity.user_id)
    return asked


def answerable(target: Target, viewpoint: Viewpoint, said: str, *, is_preview: bool) -> Target:
    """The target, if the viewpoint may know what the turn is about; `said` is the new line's.

    A preview leaves a line out that it may not know. Raises `ValidationError`.
    """
    about = target.line or target.continued
    if not is_known_to(viewpoint, said):
        raise ValidationError("`audience` must include `viewpoint`.")
    if about is None or is_known_to(viewpoint, about.audience):
        return target
    if is_preview and target.line is not None:
        return replace(target, line=None)
    raise ValidationError("`viewpoint` is not allowed to know the message of this turn.")
