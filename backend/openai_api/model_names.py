"""The names that `model` accepts: characters, chats, campaigns, plain models, and `auto`.

A slug is the name in Latin letters. Equal slugs are numbered in the order of creation, so that a
new character never changes the slug of another one. An id works like a slug.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from anyascii import anyascii
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.models import Campaign
from backend.characters import repository as characters
from backend.characters.models import Character, open_card, open_summary
from backend.chats.models import CHAT_TITLE, Chat
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.core.plain_cache import PlainCache
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.llm.user_models import UserModels
from backend.openai_api.character_recognition import (
    SystemText,
    choose_character,
    find_candidates,
)
from backend.openai_api.errors import ModelNameNotFoundError
from backend.openai_api.schemas import ModelEntry
from backend.vault.sealing import Sealer

CHARACTER_PREFIX, CAMPAIGN_PREFIX, CHAT_PREFIX = "character:", "campaign:", "chat:"
AUTO = "auto"

OWNER = "talekeeper"
"""`owned_by` of all names except those of plain models."""

MAX_LISTED_CHARACTERS = 20_000
MAX_LISTED_CHATS = 100
"""The newest chats in the list. Older ones are found by their ids, too."""
MAX_SLUG_CHARACTERS = 60
NAMELESS = "unnamed"

_SEPARATORS = re.compile(r"[^a-z0-9]+")
_OPENED_BYTES_PER_CHARACTER = 2
"""Sealed bytes of small rows that are opened in the time of counting one character's tokens."""

_CACHED_NAMES = 200_000
_CACHE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class CharacterTarget:
    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class CampaignTarget:
    """The narrator of a campaign. Its new chats have no characters, and belong to the campaign."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class StoredChatTarget:
    id: UUID


@dataclass(frozen=True, slots=True)
class PlainTarget:
    """A plain model by its id."""

    model_id: str


ModelTarget = CharacterTarget | CampaignTarget | StoredChatTarget | PlainTarget


class NamedItem(NamedTuple):
    """A character or a campaign. `names` are its name and its nickname, if it has one."""

    id: UUID
    names: Sequence[str]
    slug: str
    created_at: datetime


class NamedItems:
    """The items of one kind, oldest first, by slug and by id."""

    def __init__(self, items: Sequence[NamedItem]) -> None:
        self.items = items
        self._by_slug = {each.slug: each for each in items}
        self._by_id = {each.id: each for each in items}

    def find(self, name: str) -> NamedItem | None:
        """Return the item with a slug or an id."""
        found = self._by_slug.get(name.casefold())
        if found is not None:
            return found
        try:
            return self._by_id.get(UUID(name))
        except ValueError:
            return None

    def get(self, item_id: UUID) -> NamedItem | None:
        return self._by_id.get(item_id)


class _Directory(NamedTuple):
    version: tuple[object, ...]
    characters: NamedItems
    campaigns: NamedItems


class _Sources(NamedTuple):
    """The rows of an account's characters and campaigns, oldest first, still sealed."""

    characters: Sequence[characters.CharacterRow]
    campaigns: Sequence[Campaign]


class ModelNames(UserSignedOut):
    """Lists and finds the names of an account.

    Opening the names of 5,000 characters takes 100 ms, so they are kept in memory until one of them
    changes.
    """

    def __init__(self, database: Database, user_models: UserModels, pool: CpuPool) -> None:
        self._database = database
        self._user_models = user_models
        self._pool = pool
        self._kept: PlainCache[_Directory] = PlainCache(most=_CACHED_NAMES, seconds=_CACHE_SECONDS)

    def user_signed_out(self, user_id: UUID) -> None:
        self._kept.forget(user_id)

    def sweep(self) -> None:
        self._kept.sweep()

    async def list_entries(self, identity: Identity) -> list[ModelEntry]:
        """Return all names: characters, campaigns and chats, newest first, and plain models."""
        directory = await self._get_directory(identity)
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
            chats = await _list_chats(session, identity)
        entries = [_make_entry(AUTO, 0, AUTO)] if identity.settings.client.auto else []
        entries += _make_entries(CHARACTER_PREFIX, directory.characters)
        entries += _make_entries(CAMPAIGN_PREFIX, directory.campaigns)
        return [*entries, *chats, *_list_models(models)]

    async def find_entry(self, identity: Identity, name: str) -> ModelEntry:
        """Return the entry of a name. Raises `ModelNameNotFoundError`."""
        target = await self.resolve(identity, name)
        if target is None:
            return _make_entry(AUTO, 0, AUTO)
        match target:
            case PlainTarget(model_id):
                async with self._database.read() as session:
                    models = await self._user_models.of(session, identity.user, identity.sealer)
                spec = models.spec(model_id)
                return _make_entry(spec.id, 0, spec.title, owner=spec.provider)
            case StoredChatTarget(chat_id):
                async with self._database.read() as session:
                    [entry] = await _list_chats(session, identity, chat_id=chat_id)
                return entry
            case CharacterTarget(item_id) | CampaignTarget(item_id):
                directory = await self._get_directory(identity)
                is_character = isinstance(target, CharacterTarget)
                items = directory.characters if is_character else directory.campaigns
                prefix = CHARACTER_PREFIX if is_character else CAMPAIGN_PREFIX
                item = items.find(str(item_id))
                if item is None:  # deleted at this moment
                    raise _make_unknown_error()
                return _make_item_entry(prefix, item)

    async def resolve(
        self, identity: Identity, name: str, texts: Sequence[str] = ()
    ) -> ModelTarget | None:
        """Return the target of a name.

        `texts` are the client's system messages, by which `auto` recognises a character. None
        means that `auto` does not recognise one.

        Raises `ModelNameNotFoundError`.
        """
        prefix, found, rest = name.partition(":")
        match prefix.lower() + found:
            case "character:":
                item = (await self._get_directory(identity)).characters.find(rest)
                if item is not None:
                    return CharacterTarget(item.id, item.names[0])
            case "campaign:":
                item = (await self._get_directory(identity)).campaigns.find(rest)
                if item is not None:
                    return CampaignTarget(item.id, item.names[0])
            case "chat:":
                if chat_id := await self._find_chat(identity, rest):
                    return StoredChatTarget(chat_id)
            case "auto" if identity.settings.client.auto:
                return await self._recognise(identity, texts)
            case _:
                async with self._database.read() as session:
                    models = await self._user_models.of(session, identity.user, identity.sealer)
                if name in models.ids():
                    return PlainTarget(name)
        raise _make_unknown_error()

    async def list_characters(self, identity: Identity) -> NamedItems:
        """Return the characters of the account."""
        return (await self._get_directory(identity)).characters

    async def _find_chat(self, identity: Identity, text: str) -> UUID | None:
        try:
            chat_id = UUID(text)
        except ValueError:
            return None
        query = select(Chat.id).where(
            Chat.id == chat_id, Chat.user_id == identity.user_id, Chat.is_ready
        )
        async with self._database.read() as session:
            return await session.scalar(query)

    async def _recognise(self, identity: Identity, texts: Sequence[str]) -> CharacterTarget | None:
        """Return the character that the texts are about. Reads few cards: see `find_candidates`."""
        if not any(texts):
            return None
        items = (await self._get_directory(identity)).characters.items
        names = {place: item.names for place, item in enumerate(items)}
        run = partial(self._pool.run, identity.user_id)
        text, candidates = await run(partial(_search_names, texts, names))
        if not candidates:
            return None
        ids = {items[place].id: place for place in candidates}
        query = select(Character.id, Character.sealed_card).where(
            Character.id.in_(ids), Character.user_id == identity.user_id
        )
        async with self._database.read() as session:
            cards = [(ids[row.id], row.id, row.sealed_card) for row in await session.execute(query)]
        chosen = await run(partial(_compare_cards, identity.sealer, text, names, cards))
        return None if chosen is None else CharacterTarget(items[chosen].id, items[chosen].names[0])

    async def _get_directory(self, identity: Identity) -> _Directory:
        user_id = identity.user_id
        async with self._database.read() as session:
            version = await _read_version(session, user_id)
            kept = self._kept.get(user_id, user_id)
            if kept is not None and kept.version == version:
                return kept
            sources = await _load_sources(session, user_id)
        size = sum(len(row.sealed_summary) for row in sources.characters)
        size += sum(len(row.sealed_campaign) for row in sources.campaigns)
        directory = await self._pool.run(
            user_id,
            partial(_open_directory, identity.sealer, version, sources),
            size=size // _OPENED_BYTES_PER_CHARACTER,
        )
        count = len(sources.characters) + len(sources.campaigns)
        self._kept.put(user_id, user_id, directory, size=count)
        return directory


def make_slugs(names: Sequence[str]) -> list[str]:
    """Return the slugs of names in the order of their creation. All are different."""
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    slugs: list[str] = []
    for name in names:
        base = slug = _make_slug(name)
        while slug in taken:
            numbers[base] = numbers.get(base, 1) + 1
            slug = f"{base}-{numbers[base]}"
        taken.add(slug)
        slugs.append(slug)
    return slugs


def _make_slug(name: str) -> str:
    latin = anyascii(name[:MAX_SLUG_CHARACTERS]).casefold().replace("'", "")
    return _SEPARATORS.sub("-", latin)[:MAX_SLUG_CHARACTERS].strip("-") or NAMELESS


async def _read_version(session: AsyncSession, user_id: UUID) -> tuple[object, ...]:
    """Return values that change if a character or a campaign is created, changed or deleted."""
    values: list[object] = []
    for table, revision, owned in (
        (Character, Character.revision, Character.user_id == user_id),
        (Campaign, Campaign.version, Campaign.match_owner(user_id)),
    ):
        query = select(func.count(), func.sum(revision), func.max(table.updated_at))
        row = (await session.execute(query.where(owned))).one()
        values += row
    return tuple(values)


async def _load_sources(session: AsyncSession, user_id: UUID) -> _Sources:
    newest = await characters.list_characters(
        session, owner_id=user_id, limit=MAX_LISTED_CHARACTERS, after=None
    )
    campaigns = await session.scalars(
        select(Campaign).where(Campaign.match_owner(user_id)).order_by(Campaign.id)
    )
    return _Sources(newest[::-1], campaigns.all())


def _open_directory(sealer: Sealer, version: tuple[object, ...], sources: _Sources) -> _Directory:
    people: list[Sequence[str]] = []
    for row in sources.characters:
        check_stopped()
        summary = open_summary(sealer, row.id, row.sealed_summary)
        people.append([each for each in (summary.name, summary.nickname) if each] or [NAMELESS])
    campaigns = [[open_campaign(sealer, row).name] for row in sources.campaigns]
    return _Directory(
        version, _name_items(sources.characters, people), _name_items(sources.campaigns, campaigns)
    )


def _name_items(
    rows: Sequence[characters.CharacterRow | Campaign], names: Sequence[Sequence[str]]
) -> NamedItems:
    slugs = make_slugs([each[0] for each in names])
    return NamedItems(
        [
            NamedItem(row.id, forms, slug, row.created_at)
            for row, forms, slug in zip(rows, names, slugs, strict=True)
        ]
    )


def _search_names(
    texts: Sequence[str], names: Mapping[int, Sequence[str]]
) -> tuple[SystemText, list[int]]:
    text = SystemText(texts)
    return text, find_candidates(text, names)


def _compare_cards(
    sealer: Sealer,
    text: SystemText,
    names: Mapping[int, Sequence[str]],
    cards: Sequence[tuple[int, UUID, bytes]],
) -> int | None:
    descriptions = {
        place: open_card(sealer, card_id, blob).description for place, card_id, blob in cards
    }
    return choose_character(text, names, descriptions)


async def _list_chats(
    session: AsyncSession, identity: Identity, *, chat_id: UUID | None = None
) -> list[ModelEntry]:
    """Return the entries of the newest chats, or of one chat."""
    query = select(Chat.id, Chat.sealed_title, Chat.created_at).where(
        Chat.user_id == identity.user_id, Chat.is_ready
    )
    if chat_id is not None:
        query = query.where(Chat.id == chat_id)
    rows = await session.execute(query.order_by(Chat.id.desc()).limit(MAX_LISTED_CHATS))
    return [
        _make_entry(
            f"{CHAT_PREFIX}{row.id}",
            int(row.created_at.timestamp()),
            identity.sealer.open(CHAT_TITLE, row.id, row.sealed_title),
        )
        for row in rows
    ]


def _list_models(models: ModelRegistry) -> list[ModelEntry]:
    return [_make_entry(spec.id, 0, spec.title, owner=spec.provider) for spec in models.specs()]


def _make_entries(prefix: str, items: NamedItems) -> list[ModelEntry]:
    return [_make_item_entry(prefix, item) for item in reversed(items.items)]


def _make_item_entry(prefix: str, item: NamedItem) -> ModelEntry:
    return _make_entry(prefix + item.slug, int(item.created_at.timestamp()), item.names[0])


def _make_entry(name: str, created: int, title: str, *, owner: str = OWNER) -> ModelEntry:
    return ModelEntry(id=name, created=created, owned_by=owner, name=title)


def _make_unknown_error() -> ModelNameNotFoundError:
    return ModelNameNotFoundError(
        "`GET /v1/models` lists the names: `character:<slug>`, `chat:<id>`, `campaign:<slug>` and "
        "the ids of models.",
        extra={"param": "model"},
    )
