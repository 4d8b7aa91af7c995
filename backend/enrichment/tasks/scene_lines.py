"""The lines of a scene that a summary is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.items import Scene
from backend.campaigns.scenes.scenes import SceneSpan
from backend.campaigns.state.listeners import Listeners, WitnessFinder, find_listeners
from backend.campaigns.state.witnesses import find_item_audience
from backend.chats.members import Group, load_group
from backend.chats.models import Chat
from backend.core.audience import PUBLIC, encode_audience, may_all_know
from backend.enrichment.story import Line, read_lines
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneLines:
    """The next lines of a scene, and the part of them that is summarised.

    Attributes:
        rows: All lines, at least one.
        told: The lines for the summary, at least one.
        audiences: Their audiences, in the form of the database column.
        heard: In a group, the audience of texts made from them, or else None.
        listeners: In a group, the viewpoints of those who heard them.
    """

    rows: Sequence[Line]
    told: Sequence[Line]
    audiences: Sequence[str]
    heard: str | None = None
    listeners: Listeners = ()


async def read_scene_lines(
    session: AsyncSession, sealer: Sealer, chat: Chat, span: SceneSpan, scene: Scene, *, most: int
) -> SceneLines | None:
    """Read lines of at most `most` stored tokens, or return None if none are left.

    In a group, the same members heard all of them. Whispers that not everyone who knows the scene
    may know are skipped there.
    """
    group = await load_group(session, chat.id)
    if group.is_group:
        return await _read_group(session, sealer, chat, group, span, scene, most=most)
    rows = await read_lines(session, chat, after=span.after, through=span.last, most=most)
    if not rows:
        return None
    return SceneLines(rows=rows, told=rows, audiences=[row.audience for row in rows])


async def _read_group(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    group: Group,
    span: SceneSpan,
    scene: Scene,
    *,
    most: int,
) -> SceneLines | None:
    witnesses, told_to = WitnessFinder(group), encode_audience(scene.audience)
    made: dict[str, str] = {}
    rows: list[Line] = []
    told: list[Line] = []
    heard, after, is_same = "", span.after, True
    while is_same and not told:
        batch = await read_lines(session, chat, after=after, through=span.last, most=most)
        if not batch:
            return None
        after = batch[-1].position
        for row in batch:
            each = witnesses.find(row.position, row.audience)
            if each not in made:
                made[each] = await find_item_audience(
                    session, sealer, chat, group, each, said_to=row.audience
                )
            if row.audience == PUBLIC or may_all_know(told_to, made[each]):
                heard = heard or each
                is_same = each == heard
                if not is_same:
                    break
                told.append(row)
            rows.append(row)
    return SceneLines(
        rows=rows,
        told=told,
        audiences=[made[heard]],
        heard=made[heard],
        listeners=await find_listeners(session, sealer, chat, group, heard),
    )
