"""Viewpoints on a campaign: the fields that players know, and the entities in audiences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.changes import EXISTS, State, build_item, build_state, exists
from backend.campaigns.ledger.items import Chapter, Entity, Fact, Item, Kind, Scene, Thread
from backend.campaigns.ledger.records import (
    find_references,
    get_campaign,
    keep_references,
    open_campaign,
)
from backend.campaigns.ledger.store import read_state
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.rules.protocol import RuleSystem, find_rules, read_play
from backend.campaigns.rules.state import PLAY
from backend.campaigns.state.situation_reader import CampaignReader, Condition
from backend.campaigns.state.snapshot import PlayedEntities
from backend.characters.repository import find_names
from backend.chats.errors import MemberAbsentError
from backend.chats.events import AudienceChecked
from backend.chats.members import load_absences, load_group
from backend.chats.models import Chat, ChatCharacter
from backend.core.audience import (
    GM,
    NAMELESS_MARKS,
    PUBLIC,
    Audience,
    AudienceMarks,
    Viewpoint,
    Witness,
    filter_known_to_all,
    list_entities,
    list_viewers,
)
from backend.core.cpu_pool import iterate_in_slices
from backend.errors import ValidationError
from backend.vault.sealing import Sealer


def render_item(item: Item, names: Mapping[UUID, str] = MappingProxyType({})) -> str:
    """Return the text of an item: a line for each field. `names` are the names of places."""
    match item:
        case Fact():
            return item.text
        case Thread():
            steps = [step.text for step in item.objectives]
            next_step = f"Next: {item.next_step}" if item.next_step else ""
            return join_lines(
                [f"{item.kind.capitalize()}, {item.status}", item.summary, next_step, *steps]
            )
        case Scene():
            return join_lines(["Scene, over", item.summary, *item.key_moments])
        case Chapter():
            return join_lines(["Chapter", item.summary])
        case Entity():
            name = names.get(item.location_id) if item.location_id else None
            place = f"at {name}" if name else ""
            head = ", ".join(
                filter(None, [item.kind, item.role, item.status, item.disposition, place])
            )
            wants = f"Wants: {item.wants}" if item.wants else ""
            voice = f"Voice: {'; '.join(item.voice)}" if item.voice else ""
            return join_lines(
                [head, item.description, item.personality, voice, wants, *_render_attributes(item)]
            )
        case _:
            return ""


def list_names(item: Item) -> list[str]:
    """Return the names of an item. A fact has none."""
    match item:
        case Entity():
            return [item.name, *item.aliases]
        case Thread() | Scene() | Chapter():
            return [item.title]
        case _:
            return []


def render_title(item: Item, names: Mapping[UUID, str]) -> str:
    if isinstance(item, Fact):
        return names.get(item.about_id, "") if item.about_id else ""
    return next(iter(list_names(item)), "")


def find_words(attributes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the texts in attributes by name. A search for words never means a number."""
    found: dict[str, list[str]] = {}
    for name, value in attributes.items():
        values: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
        if words := [each for each in values if isinstance(each, str) and each.strip()]:
            found[name] = words
    return found


def _render_attributes(entity: Entity) -> list[str]:
    found = find_words(entity.attributes)
    return [f"{name}: {', '.join(words)}" for name, words in found.items()]


def join_lines(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text.strip())


_FIELDS: Mapping[Kind, frozenset[str]] = {
    "world": frozenset({"day", "time_of_day", "attributes"}),
    "entity": frozenset(
        {"kind", "name", "aliases", "status", "role", "description", "disposition"}
        | {"personality", "voice", "wants", "location_id", "attributes", "audience"}
    ),
    "relation": frozenset({"from_id", "to_id", "score", "audience"}),
    "thread": frozenset(
        {"kind", "title", "summary", "priority", "tension", "status", "next_step", "objectives"}
        | {"giver_id", "audience"}
    ),
    "clock": frozenset({"name", "segments", "filled", "kind", "consequence", "audience"}),
    "fact": frozenset({"text", "about_id", "audience"}),
    "scene": frozenset(
        {"title", "location_id", "present", "stakes", "type", "status", "summary"}
        | {"key_moments", "audience"}
    ),
    "chapter": frozenset({"title", "summary", "scene_ids", "audience"}),
    "echo": frozenset({"text", "kind", "audience"}),
    "term": frozenset({"term", "definition", "status", "audience"}),
}
"""The fields that prompts of replies or of background work render, by kind."""

MIN_GROUP = 2
"""Members of a chat from which on they may know different things."""

Items = Iterable[tuple[UUID, Kind, State]]


def filter_known_items(
    items: Items, rules: RuleSystem[Any], viewpoint: Viewpoint
) -> list[tuple[UUID, Kind, State]]:
    """Return items of a viewpoint with the fields that a player knows.

    Prompts render how people feel about players' characters, and what the character of the
    viewpoint thinks of others, and no other relation.
    """
    own = {str(each) for each in viewpoint.ids} if isinstance(viewpoint, Witness) else set[str]()
    known: list[tuple[UUID, Kind, State]] = []
    notes: set[str] = set()
    for item_id, kind, state in items:
        found = filter_known_state(kind, state, rules)
        if found is None:
            continue
        if kind == "relation" and state["from_id"] in own:
            found["note"] = state.get("note", "")
            notes.add(str(item_id))
        known.append((item_id, kind, found))
    players = {
        str(item_id) for item_id, kind, state in known if kind == "entity" and state["kind"] == "pc"
    }
    return [
        each
        for each in known
        if each[1] != "relation" or str(each[0]) in notes or each[2]["to_id"] in players
    ]


def filter_known_state(kind: Kind, state: State, rules: RuleSystem[Any]) -> State | None:
    """Return the fields of an item that prompts of a player render; None if they render none."""
    if not exists(state) or not _is_rendered(kind, state):
        return None
    known = {key: value for key, value in state.items() if key in _FIELDS[kind]}
    if kind == "term" and state.get("status") == "raw":
        known.pop("definition", None)  # a prompt has the bare word
    if kind == "world":
        known["attributes"] = _filter_world_attributes(state, rules)
    if kind == "entity" and state["kind"] != "pc":
        known["attributes"] = _filter_attributes(state, rules)
    return {EXISTS: True, **known}


async def load_known_rows(
    reader: CampaignReader, rows: Sequence[tuple[CampaignItem, Item]]
) -> list[tuple[CampaignItem, Item]]:
    """Return items as the reader's viewpoint knows them, which may leave some out."""
    if reader.viewpoint == GM:
        return list(rows)
    rules = find_rules(reader.campaign.rules)
    states = [(row, filter_known_state(row.kind, build_state(item), rules)) for row, item in rows]
    known = [(row, build_item(row.kind, state)) for row, state in states if state is not None]
    named = {each for _, item in known for ids in find_references(item).values() for each in ids}
    named |= {each for row, _ in known for each in list_entities(row.audience)}
    found = {str(each) for each in await reader.load_known_ids(named)}
    if not isinstance(reader.viewpoint, str):
        found |= {str(each) for each in list_viewers(reader.viewpoint)}
    return [
        (row, build_item(row.kind, keep_references(build_state(item), found)))
        for row, item in known
    ]


def _is_rendered(kind: Kind, state: State) -> bool:
    match kind:
        case "clock":
            return state.get("visible") is not False
        case "fact":
            return state.get("superseded_by") is None
        case "echo":
            return not state.get("resolved")
        case "term":
            return state.get("status", "approved") in {"approved", "raw"}
        case _:
            return True


def _filter_world_attributes(state: State, rules: RuleSystem[Any]) -> State:
    """Return the state of play, and the numbers that the rules show to players."""
    attributes: State = state.get("attributes") or {}
    counted: Mapping[str, Any] = rules.schema("world").get("properties", {})
    known = {name: value for name, value in attributes.items() if name in counted}
    if PLAY in attributes:
        known[PLAY] = msgspec.to_builtins(read_play(state, rules))
    return known


def _filter_attributes(state: State, rules: RuleSystem[Any]) -> State:
    """Return the attributes of someone who is no player's character, or of a place or thing.

    A prompt has their words, and the values that a model may change without a tool. It renders
    no object.
    """
    attributes: State = state.get("attributes") or {}
    worded, changeable = find_words(attributes), rules.changeable("entity", state)
    known: State = {}
    for name, value in attributes.items():
        if name not in changeable and name not in worded:
            continue
        if isinstance(value, list):
            listed: list[Any] = cast("Any", value)
            plain = [each for each in listed if not isinstance(each, dict | list)]
            known[name] = plain if name in changeable else worded[name]
        else:
            known[name] = value
    return known


class Player(NamedTuple):
    """The character that the user plays. `audience` is in the format of its column."""

    id: UUID
    name: str
    audience: str


async def find_player(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> Player | None:
    """Return the only player's character, or None. A user without a persona is this character."""
    if campaign_id is None:
        return None
    query = select(CampaignItem.id, CampaignItem.audience, CampaignItem.sealed_state).where(
        *match_players(campaign_id), CampaignItem.user_id == sealer.user_id
    )
    rows = (await session.execute(query.limit(2))).all()
    if len(rows) != 1:
        return None
    [row] = rows
    return Player(row.id, read_state(sealer, row.id, row.sealed_state)["name"], row.audience)


async def find_player_name(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None
) -> str | None:
    """Return the name of `find_player` if everyone may know it."""
    player = await find_player(session, sealer, campaign_id)
    return player.name if player and player.audience == PUBLIC else None


def match_players(campaign_id: UUID | None) -> Sequence[Condition]:
    return (
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.kind == "entity",
        CampaignItem.subkind == "pc",
        CampaignItem.exists,
    )


Campaigns = Sequence[UUID | None] | None
"""Ids of campaigns; None for all campaigns of a user."""


async def check_viewpoint(
    session: AsyncSession, viewpoint: Viewpoint, campaigns: Campaigns, *, owner_id: UUID
) -> None:
    """Raise `ValidationError` for an entity that none of the campaigns has."""
    if isinstance(viewpoint, UUID) and await _find_missing(
        session, [viewpoint], campaigns, owner_id=owner_id
    ):
        raise ValidationError(
            f"`viewpoint` refers to {viewpoint}, which is neither a character of the chat nor an "
            "entity of its campaign."
        )


async def find_witness(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    character_id: UUID,
    name: str,
    *,
    played: PlayedEntities | None = None,
) -> Witness:
    """Return the viewpoint of a character of a chat, with the entities that it plays there.

    `played` are those of the chat's campaign, if the caller has read them.
    """
    if played is None and chat.campaign_id is not None:
        played = await load_played_entities(session, sealer, chat.campaign_id)
    return await _make_witness(
        session, character_id, played.find(character_id, name) if played else ()
    )


async def _make_witness(
    session: AsyncSession, character_id: UUID, played: Iterable[UUID]
) -> Witness:
    absences = await load_absences(session, character_id)
    return Witness(character_id, frozenset({character_id, *played}), absences)


async def load_played_entities(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID
) -> PlayedEntities:
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.user_id == sealer.user_id,
        CampaignItem.kind == "entity",
        CampaignItem.subkind.in_(("pc", "npc")),
        CampaignItem.exists,
    )
    names: dict[UUID, tuple[str, ...]] = {}
    cards: dict[UUID, UUID | None] = {}
    rows = (await session.execute(query)).all()
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        state = read_state(sealer, row.id, row.sealed_state)
        card = state.get("character_id")
        names[row.id] = (state["name"], *state.get("aliases", []))
        cards[row.id] = UUID(card) if card else None
    return PlayedEntities(names, cards)


async def resolve_viewpoint(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    viewpoint: Viewpoint,
    *,
    played: PlayedEntities | None = None,
) -> Viewpoint:
    """Return a viewpoint of a chat. A member has its own, and so has an entity that it plays.

    Raises `ValidationError` for an id of neither a member nor an entity of the campaign.
    """
    if not isinstance(viewpoint, UUID):
        return viewpoint
    sealer = identity.sealer
    members = (await load_group(session, chat.id)).members
    if viewpoint not in members:
        await check_viewpoint(session, viewpoint, [chat.campaign_id], owner_id=identity.user_id)
    if played is None and chat.campaign_id is not None:
        played = await load_played_entities(session, sealer, chat.campaign_id)
    return await _find_player(session, sealer, members, viewpoint, played)


async def resolve_campaign_viewpoint(
    session: AsyncSession, identity: Identity, campaign_id: UUID, viewpoint: Viewpoint
) -> Viewpoint:
    """Return a viewpoint of a campaign, as `resolve_viewpoint` does for any of its chats."""
    if not isinstance(viewpoint, UUID):
        return viewpoint
    sealer, owner_id = identity.sealer, identity.user_id
    query = (
        select(ChatCharacter.character_id)
        .join(Chat, Chat.id == ChatCharacter.chat_id)
        .where(Chat.campaign_id == campaign_id, Chat.user_id == owner_id)
    )
    members = set(await session.scalars(query))
    if viewpoint not in members:
        await check_viewpoint(session, viewpoint, [campaign_id], owner_id=owner_id)
    played = await load_played_entities(session, sealer, campaign_id)
    return await _find_player(session, sealer, members, viewpoint, played)


async def resolve_any_viewpoint(
    session: AsyncSession, identity: Identity, viewpoint: Viewpoint
) -> Viewpoint:
    """Return a viewpoint of all chats and campaigns of a user.

    A character plays the entities of all campaigns in whose chats it is. Raises `ValidationError`
    for an id of neither a character nor an entity.
    """
    if not isinstance(viewpoint, UUID):
        return viewpoint
    sealer, owner_id = identity.sealer, identity.user_id
    names = await find_names(session, [viewpoint], owner_id=owner_id, sealer=sealer)
    if viewpoint not in names:
        await check_viewpoint(session, viewpoint, None, owner_id=owner_id)
        query = select(CampaignItem.campaign_id).where(
            CampaignItem.id == viewpoint, CampaignItem.user_id == owner_id
        )
        own_id = (await session.scalars(query)).one()
        return await resolve_campaign_viewpoint(session, identity, own_id, viewpoint)
    campaigns = (
        select(Chat.campaign_id)
        .join(ChatCharacter, ChatCharacter.chat_id == Chat.id)
        .where(ChatCharacter.character_id == viewpoint, Chat.user_id == owner_id)
        .where(Chat.campaign_id.is_not(None))
        .distinct()
    )
    found: list[UUID] = []
    for campaign_id in (await session.scalars(campaigns)).all():
        if campaign_id is not None:
            played = await load_played_entities(session, sealer, campaign_id)
            found += played.find(viewpoint, names[viewpoint])
    return await _make_witness(session, viewpoint, found)


async def _find_player(
    session: AsyncSession,
    sealer: Sealer,
    members: Collection[UUID],
    viewpoint: UUID,
    played: PlayedEntities | None,
) -> Viewpoint:
    """Return the viewpoint of the member with this id, or of the one that plays this entity."""
    asked = [viewpoint] if viewpoint in members else list(members) if played else []
    names = await find_names(session, asked, owner_id=sealer.user_id, sealer=sealer)
    for character_id, name in names.items():
        own = played.find(character_id, name) if played else ()
        if viewpoint == character_id or viewpoint in own:
            return await _make_witness(session, character_id, own)
    return viewpoint


async def find_viewer_name(session: AsyncSession, sealer: Sealer, viewpoint: Viewpoint) -> str:
    """Return the name of a viewpoint for the user."""
    if isinstance(viewpoint, str):
        return "everyone"
    if isinstance(viewpoint, Witness):
        character_id = viewpoint.character_id
        names = await find_names(session, [character_id], owner_id=sealer.user_id, sealer=sealer)
        return names.get(character_id, "")
    query = select(CampaignItem.sealed_state).where(
        CampaignItem.id == viewpoint, CampaignItem.user_id == sealer.user_id
    )
    sealed = await session.scalar(query)
    return str(read_state(sealer, viewpoint, sealed)["name"]) if sealed else ""


async def read_marks(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID | None, audience: str
) -> AudienceMarks:
    """Return marks with the names of entities that an audience may know; none if it is public."""
    if audience == PUBLIC or campaign_id is None:
        return NAMELESS_MARKS
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        CampaignItem.campaign_id == campaign_id,
        CampaignItem.user_id == sealer.user_id,
        CampaignItem.kind == "entity",
        CampaignItem.exists,
        filter_known_to_all(audience, CampaignItem.audience),
    )
    rows = (await session.execute(query)).all()
    names: dict[UUID, str] = {}
    async for row in iterate_in_slices(rows, lambda row: len(row.sealed_state)):
        names[row.id] = read_state(sealer, row.id, row.sealed_state)["name"]
    return AudienceMarks(names.get)


class CampaignAudiences(AudienceChecked):
    async def audience_checked(
        self,
        session: AsyncSession,
        sealer: Sealer,
        chat: Chat,
        audience: Audience,
        *,
        position: int | None,
    ) -> None:
        """Raise `ValidationError` or `MemberAbsentError` if a message cannot have this audience."""
        await check_chat_audience(session, sealer, chat, audience, position=position)


async def check_chat_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, audience: Audience, *, position: int | None
) -> None:
    """Raise `ValidationError` for an id of neither a member of the chat nor an entity of its world.

    Raise `MemberAbsentError` for a member that is not there at a message's `position`, if it is
    given. A chat with neither members nor a world has only public messages.
    """
    if audience == PUBLIC:
        return
    group = await load_group(session, chat.id)
    if chat.campaign_id is None and len(group.members) < MIN_GROUP and not group.changes:
        raise ValidationError(
            "All messages of a chat with one character and without a campaign are public."
        )
    if not isinstance(audience, list):
        return
    others = [each for each in audience if each not in group.members]
    await _check(session, others, [chat.campaign_id], owner_id=chat.user_id)
    if position is not None:
        presences = group.find_presences(position)
        absent = [each for each in audience if presences.get(each) == "absent"]
        if absent:
            names = await find_names(session, absent, owner_id=chat.user_id, sealer=sealer)
            raise MemberAbsentError(absent[0], names.get(absent[0], ""))


async def check_event_audience(
    session: AsyncSession, chronicle_id: UUID, audience: Audience, *, owner_id: UUID
) -> None:
    """Raise `ValidationError` for an id of neither a character nor an entity of the chronicle.

    They are those of the chats and campaigns that use it.
    """
    if audience == PUBLIC:
        return
    uses_it = Chat.chronicle_id == chronicle_id, Chat.user_id == owner_id
    theirs = select(Campaign.id).where(
        Campaign.chronicle_id == chronicle_id, Campaign.match_owner(owner_id)
    )
    of_chats = select(Chat.campaign_id).where(*uses_it, Chat.campaign_id.is_not(None))
    members = set(
        await session.scalars(
            select(ChatCharacter.character_id)
            .join(Chat, Chat.id == ChatCharacter.chat_id)
            .where(*uses_it)
        )
    )
    found = [*await session.scalars(theirs), *await session.scalars(of_chats)]
    if not found and not members:
        raise ValidationError("All events of a chronicle without characters are public.")
    if isinstance(audience, list):
        others = [each for each in audience if each not in members]
        await _check(session, others, found, owner_id=owner_id)


async def find_players_viewpoint(
    session: AsyncSession, identity: Identity, campaign_id: UUID, name: str
) -> Viewpoint:
    """Return the viewpoint of the user's next message.

    It is the game master's, unless the campaign has hidden information. Then it is that of the
    player's character with this name, else of the only one, else the public viewpoint.
    """
    campaign = await get_campaign(session, identity, campaign_id)
    if not open_campaign(identity.sealer, campaign).settings.hidden_information:
        return GM
    player_id = await find_users_entity(session, identity.sealer, campaign_id, name)
    return player_id or PUBLIC


async def find_users_entity(
    session: AsyncSession, sealer: Sealer, campaign_id: UUID, name: str
) -> UUID | None:
    """Return the player's character with a name, else the only one."""
    query = select(CampaignItem.id, CampaignItem.sealed_state).where(
        *match_players(campaign_id), CampaignItem.user_id == sealer.user_id
    )
    players: dict[UUID, State] = {
        row.id: read_state(sealer, row.id, row.sealed_state) for row in await session.execute(query)
    }
    folded = name.casefold()
    for player_id, state in players.items():
        if folded in {each.casefold() for each in (state["name"], *state.get("aliases", []))}:
            return player_id
    return next(iter(players)) if len(players) == 1 else None


async def hides_information(session: AsyncSession, sealer: Sealer, chat: Chat) -> bool:
    campaign = await session.get(Campaign, chat.campaign_id) if chat.campaign_id else None
    return campaign is not None and open_campaign(sealer, campaign).settings.hidden_information


async def filter_players(
    session: AsyncSession, entity_ids: Collection[UUID], campaign_id: UUID | None
) -> Sequence[UUID]:
    query = select(CampaignItem.id).where(
        CampaignItem.id.in_(entity_ids), *match_players(campaign_id)
    )
    return (await session.scalars(query.order_by(CampaignItem.id))).all()


async def _check(
    session: AsyncSession, entity_ids: Sequence[UUID], campaigns: Campaigns, *, owner_id: UUID
) -> None:
    if missing := await _find_missing(session, entity_ids, campaigns, owner_id=owner_id):
        raise ValidationError(
            f"`audience` refers to {missing}, which is neither a character of the chat nor an "
            "entity of its campaign."
        )


async def _find_missing(
    session: AsyncSession, entity_ids: Sequence[UUID], campaigns: Campaigns, *, owner_id: UUID
) -> UUID | None:
    where: list[ColumnElement[bool]] = []
    if campaigns is not None:
        where.append(CampaignItem.campaign_id.in_([each for each in campaigns if each]))
    found = set(
        await session.scalars(
            select(CampaignItem.id).where(
                CampaignItem.id.in_(entity_ids),
                CampaignItem.user_id == owner_id,
                CampaignItem.kind == "entity",
                CampaignItem.exists,
                *where,
            )
        )
    )
    return next((each for each in entity_ids if each not in found), None)
