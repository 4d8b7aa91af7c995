from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import check_budgets, decode_settings, find_named_models
from backend.chats import repository, tree
from backend.chats.deletion import hide_chat
from backend.chats.drafts import MessageDraft, copy_row, reseal, seal_draft
from backend.chats.errors import MessagesFollowError
from backend.chats.events import (
    CampaignChosen,
    CharactersNamed,
    ChatClosed,
    ChatCopied,
    ChatDeleted,
    ConsentWithdrawn,
    PresetChosen,
    StoreWorld,
    WorldCopied,
    WorldShared,
    check_audience,
)
from backend.chats.files import copy_references
from backend.chats.members import load_group
from backend.chats.models import (
    CHAT_SETTINGS,
    CHAT_TITLE,
    CHAT_VARIABLES,
    Chat,
    ChatCharacter,
    Message,
    TitleOrigin,
)
from backend.chats.presence import FindNames, add_members, replace_members
from backend.chats.schemas import (
    MAX_TITLE_CHARACTERS,
    ChatPatch,
    ChatSettings,
    ChatView,
    ForkWorld,
)
from backend.chats.token_counting import CountUnit
from backend.chats.views import ChatListRows, clean_tags
from backend.core.audience import GM, PUBLIC
from backend.core.cpu_pool import CpuPool, iterate_in_slices
from backend.core.events import Participants
from backend.database.base import RecordCreated, new_id, now, record_nothing, split_chunks
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.generation.model import ModelSpec
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.sampling import Sampling
from backend.generation.tokens import choose_tokenizer
from backend.http.schemas import Page, check_revision, make_page, merge_patch
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded, check_nothing
from backend.settings import Settings
from backend.vault.sealing import Sealer


def choose_chat_model(
    models: ModelRegistry,
    identity: Identity,
    settings: ChatSettings,
    *,
    beneath: Sampling | None = None,
) -> tuple[ModelSpec, Sampling]:
    """Return the user's model for the next turn of a chat, and its sampling.

    The account's sampling applies only to the account's model. The chat's settings override it.
    Values of a preset, `beneath`, have the lowest priority, if the model accepts them.

    Raises `UnknownModelError`, `SettingNotTakenError`.
    """
    account = identity.settings
    spec = models.spec(settings.model or account.model or models.default_id)
    sampling = settings.sampling
    if settings.model is None:
        sampling = merge_patch(account.sampling, msgspec.to_builtins(settings.sampling))
    spec.check_sampling(sampling)
    if beneath is not None:
        names = [name for name in beneath.set_fields() if name in spec.accepts]
        usual = Sampling(**{name: getattr(beneath, name) for name in names})
        sampling = merge_patch(usual, msgspec.to_builtins(sampling))
    return spec, sampling


def choose_counting_model(models: ModelRegistry, identity: Identity) -> ModelSpec:
    """Return the model for the token counts of a new chat: the account's, or any if it is deleted.

    No request is sent, so chats can be opened while no model is available.
    """
    try:
        return models.spec(identity.settings.model or models.default_id)
    except UnknownModelError:
        return models.specs()[0]


def read_settings(sealer: Sealer, chat: Chat) -> ChatSettings:
    """Open a chat's settings. Its chronicle is stored in separate columns."""
    settings = ChatSettings()
    if chat.sealed_settings is not None:
        data = sealer.open_bytes(CHAT_SETTINGS, chat.id, chat.sealed_settings)
        settings = decode_settings(data, ChatSettings)
    return msgspec.structs.replace(
        settings, chronicle_enabled=chat.chronicle_enabled, chronicle_id=chat.chronicle_id
    )


_MARKS: Final = frozenset({"pinned", "archived", "tags"})
"""Members of a patch that do not change the time of a chat's last change."""

ChooseChronicle = Callable[[AsyncSession, Identity, Chat, UUID | None], Awaitable[UUID]]
"""Checks that a chronicle belongs to the chat's owner. None creates a new one for the chat."""


class ChatService:
    """Open, list, change, fork and delete chats. Each route lists its errors."""

    def __init__(  # noqa: PLR0913  # the application hands it its parts
        self,
        database: Database,
        user_models: UserModels,
        settings: Settings,
        index: IndexOutbox,
        *,
        pool: CpuPool,
        chronicle: ChooseChronicle,
        find_names: FindNames,
        participants: Participants | None = None,
        check_added: CheckAdded = check_nothing,
    ) -> None:
        self._check_added = check_added
        self._pool = pool
        self._chronicle = chronicle
        self._find_names = find_names
        self._participants = participants or Participants()
        self._database = database
        self._index = index
        self._user_models = user_models
        self._settings = settings

    async def open(
        self,
        identity: Identity,
        *,
        title: str,
        title_origin: TitleOrigin = "user",
        character_ids: Sequence[UUID],
        persona_id: UUID | None,
        greetings: Sequence[MessageDraft],
        campaign_id: UUID | None = None,
        record: RecordCreated = record_nothing,
    ) -> ChatView:
        """Create a chat. The first greeting is its first message, and the others are swipes."""
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        spec = choose_counting_model(models, identity)
        unit = CountUnit(choose_tokenizer(spec.tokenizer), names=len(character_ids) > 1)
        chat_id = new_id()
        chat = Chat(
            id=chat_id,
            user_id=identity.user_id,
            sealed_title=identity.sealer.seal(CHAT_TITLE, chat_id, title),
            title_origin=title_origin,
            persona_id=persona_id,
            count_unit=str(unit),
        )
        drafts = await self._pool.run(
            identity.user_id,
            lambda: [seal_draft(identity.sealer, each, unit=unit) for each in greetings],
            size=sum(len(each.text) for each in greetings),
        )
        messages = [Message(**each) for each in drafts]
        async with self._database.write() as session:
            session.add(chat)
            await session.flush()
            await self._check_added(session, identity.user_id)
            await record(session, chat_id)
            add_members(session, chat_id, dict.fromkeys(character_ids, True))
            if campaign_id is not None:
                for handler in self._participants.find_handlers(CampaignChosen):
                    await handler.campaign_chosen(session, identity, chat, campaign_id)
            if messages:
                await tree.attach_greetings(session, chat, messages)
                ids = [message.id for message in messages]
                await self._index.changed(
                    session, identity, kind="message", container_id=chat.id, source_ids=ids
                )
            await session.flush()
            return await _load_view(session, identity.sealer, chat)

    async def get(self, identity: Identity, chat_id: UUID) -> ChatView:
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
            return await _load_view(session, identity.sealer, chat)

    async def list_chats(
        self,
        identity: Identity,
        *,
        limit: int,
        after: UUID | None,
        character_id: UUID | None,
        archived: bool | None = None,
    ) -> Page[ChatView]:
        """Return a page of the chats, newest first: all, archived ones, or the others."""
        query = select(Chat).where(Chat.user_id == identity.user_id, Chat.is_ready)
        if archived is not None:
            query = query.where(
                Chat.archived_at.is_not(None) if archived else Chat.archived_at.is_(None)
            )
        if after is not None:
            query = query.where(Chat.id < after)
        if character_id is not None:
            takes_part = ChatCharacter.chat_id == Chat.id
            query = query.join(ChatCharacter, takes_part).where(
                ChatCharacter.character_id == character_id
            )
        query = query.order_by(Chat.id.desc()).limit(limit + 1)
        async with self._database.read() as session:
            chats, following = make_page(list(await session.scalars(query)), limit)
            rows = await ChatListRows.load(session, chats)
        items = await self._pool.run(
            identity.user_id, partial(rows.open, identity.sealer), size=rows.size
        )
        return Page(items=items, next=following)

    async def patch(
        self,
        identity: Identity,
        chat_id: UUID,
        change: ChatPatch,
        *,
        named: frozenset[str],
        if_match: str | None,
        title_origin: TitleOrigin = "user",
    ) -> ChatView:
        """Change the members of a chat in `named`. The caller must check who owns each value.

        In a chat with messages, characters join and leave with messages. Raises `MessageBusyError`
        while a reply is being written.
        """
        async with self._database.write() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            check_revision(if_match, chat.revision)
            if "campaign_id" in named:
                for handler in self._participants.find_handlers(CampaignChosen):
                    await handler.campaign_chosen(session, identity, chat, change.campaign_id)
            if "title" in named:
                chat.sealed_title = identity.sealer.seal(CHAT_TITLE, chat.id, change.title)
                chat.title_origin = title_origin
            _mark(chat, change, named)
            if "tags" in named:
                _set_tags(identity.sealer, chat, change.tags)
            if "persona_id" in named:
                chat.persona_id = change.persona_id
            if "character_ids" in named:
                added = await replace_members(
                    session,
                    identity,
                    chat,
                    change.character_ids,
                    find_names=self._find_names,
                    participants=self._participants,
                )
                await session.flush()
                if added:
                    await self._index.changed(
                        session, identity, kind="message", container_id=chat.id, source_ids=added
                    )
            chat.revision += 1
            if named - _MARKS:
                chat.updated_at = now()
            await session.flush()
            return await _load_view(session, identity.sealer, chat)

    async def read_settings(self, identity: Identity, chat_id: UUID) -> tuple[ChatSettings, int]:
        """Return (settings, revision)."""
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
        return read_settings(identity.sealer, chat), chat.revision

    async def patch_settings(
        self, identity: Identity, chat_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> tuple[ChatSettings, int]:
        """Return (settings, new revision).

        Also raises the errors of `chronicle` and participants.
        """
        async with self._database.write() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            check_revision(if_match, chat.revision)
            before = read_settings(identity.sealer, chat)
            _check_no_embedding(patch)
            settings = merge_patch(before, patch)
            models = await self._user_models.of(session, identity.user, identity.sealer)
            # A deleted model must not prevent other changes.
            if (settings.model, settings.sampling) != (before.model, before.sampling):
                choose_chat_model(models, identity, settings)
            # Only a preset in the patch must exist, because the present one may have been deleted.
            if "preset_id" in patch and settings.preset_id is not None:
                for handler in self._participants.find_handlers(PresetChosen):
                    await handler.preset_chosen(session, identity, settings.preset_id)
            named = find_named_models(settings.task_models, settings.enrichment)
            for model_id in sorted(
                named - find_named_models(before.task_models, before.enrichment)
            ):
                models.spec(model_id)
            if settings.viewpoint not in {before.viewpoint, None, GM, PUBLIC}:
                seen_by = UUID(settings.viewpoint)
                if seen_by not in (await load_group(session, chat.id)).members:
                    await check_audience(
                        self._participants, session, identity.sealer, chat, [seen_by]
                    )
            await _check_group(self._participants, session, identity, before, settings)
            check_budgets(
                [settings.budgets, identity.settings.budgets],
                self._settings,
                before=before.budgets,
            )
            await self._keep_chronicle(session, identity, chat, settings)
            if "tags" in patch:
                settings = msgspec.structs.replace(settings, tags=clean_tags(settings.tags))
            _store_settings(identity.sealer, chat, settings)
            chat.revision += 1
            return read_settings(identity.sealer, chat), chat.revision

    async def _keep_chronicle(
        self, session: AsyncSession, identity: Identity, chat: Chat, settings: ChatSettings
    ) -> None:
        """Apply the settings of the chronicle. Messages before consent are not recorded."""
        if chat.chronicle_enabled and not settings.chronicle_enabled:
            for handler in self._participants.find_handlers(ConsentWithdrawn):
                await handler.consent_withdrawn(session, chat)
        if settings.chronicle_id != chat.chronicle_id or (
            settings.chronicle_enabled and chat.chronicle_id is None
        ):
            wanted = settings.chronicle_id
            if wanted is not None or settings.chronicle_enabled:
                wanted = await self._chronicle(session, identity, chat, wanted)
            chat.chronicle_id = wanted
        if settings.chronicle_enabled and not chat.chronicle_enabled:
            chat.chronicle_since = now()
        chat.chronicle_enabled = settings.chronicle_enabled

    async def delete(
        self, identity: Identity, chat_id: UUID, *, newest: UUID | None = None
    ) -> None:
        """Delete a chat with all its messages.

        The chat can no longer be found after one transaction. `ChatClosed` handlers delete the rows
        in many transactions, for long chats later.

        Raises `MessagesFollowError` if it has a message that was created after `newest`.
        """
        async with self._database.write() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id, lock=True)
            if newest is not None:
                later = select(Message.id).where(Message.chat_id == chat.id, Message.id > newest)
                if await session.scalar(later.limit(1)) is not None:
                    raise MessagesFollowError
            for handler in self._participants.find_handlers(ChatDeleted):
                await handler.chat_deleted(session, identity, chat)
            await hide_chat(session, chat)
            await self._index.changed(session, identity, kind="message", container_id=chat_id)
        for part in self._participants.find_handlers(ChatClosed):
            await part.chat_closed(chat_id)

    async def fork(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        message_id: UUID,
        title: str | None,
        world: ForkWorld = "shared",
    ) -> ChatView:
        """Copy the path that ends at a message into a new chat, in the campaign or in a copy of it.

        Also raises the errors of `chat_copied` and `world_copied`.
        """
        sealer = identity.sealer
        worlds: list[StoreWorld] = []
        if world == "copy":
            async with self._database.read() as session:
                await _find_fork_source(session, identity, chat_id, message_id)
            worlds = [
                await handler.world_copied(identity, chat_id, message_id)
                for handler in self._participants.find_handlers(WorldCopied)
            ]
        async with self._database.write() as session:
            source, message = await _find_fork_source(session, identity, chat_id, message_id)
            fork = await self._add_copy(session, identity, source, title)
            path = repository.stream_path(session, message)
            copied = await _copy_messages(session, sealer, path, fork.id, is_path=True)
            fork.leaf_id = copied[message.id]
            shares = world == "shared"
            await self._copy_parts(
                session, identity, source.id, fork.id, copied, shares_world=shares
            )
            for store in worlds:
                await store(session, fork, copied)
            return await _load_view(session, sealer, fork)

    async def duplicate(self, identity: Identity, chat_id: UUID) -> ChatView:
        """Copy a chat with all its branches. The copy stays in the campaign of the chat.

        Raises `MessageBusyError` while a reply is being written, and the errors of `chat_copied`.
        """
        sealer = identity.sealer
        async with self._database.write() as session:
            source = await repository.get_chat(
                session, chat_id, owner_id=identity.user_id, lock=True
            )
            await repository.check_no_reply_streams(session, chat_id)
            title = make_copy_title(sealer.open(CHAT_TITLE, source.id, source.sealed_title))
            copy = await self._add_copy(session, identity, source, title)
            tree_rows = repository.stream_tree(session, chat_id)
            copied = await _copy_messages(session, sealer, tree_rows, copy.id, is_path=False)
            copy.leaf_id = copied[source.leaf_id] if source.leaf_id else None
            await self._copy_parts(session, identity, source.id, copy.id, copied, shares_world=True)
            return await _load_view(session, sealer, copy)

    async def _add_copy(
        self, session: AsyncSession, identity: Identity, source: Chat, title: str | None
    ) -> Chat:
        """Add the row of a copied chat, with its settings, variables and members.

        Without a title, it has that of the source.
        """
        sealer, copy_id = identity.sealer, new_id()
        group = await load_group(session, source.id)
        copy = Chat(
            id=copy_id,
            user_id=identity.user_id,
            sealed_title=sealer.seal(
                CHAT_TITLE,
                copy_id,
                title or sealer.open(CHAT_TITLE, source.id, source.sealed_title),
            ),
            title_origin="user" if title else source.title_origin,
            sealed_settings=reseal(
                sealer, CHAT_SETTINGS, source.id, source.sealed_settings, copy_id
            ),
            sealed_variables=reseal(
                sealer, CHAT_VARIABLES, source.id, source.sealed_variables, copy_id
            ),
            persona_id=source.persona_id,
            count_unit=source.count_unit,
        )
        session.add(copy)
        await session.flush()
        await self._check_added(session, identity.user_id)
        add_members(session, copy_id, group.members)
        return copy

    async def _copy_parts(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        copy_id: UUID,
        copied: Mapping[UUID, UUID],
        *,
        shares_world: bool,
    ) -> None:
        """Copy the data of a chat in other packages, and index the messages."""
        for handler in self._participants.find_handlers(ChatCopied):
            await handler.chat_copied(session, identity, source_id, copy_id, copied)
        await self._index.changed(session, identity, kind="message", container_id=copy_id)
        if shares_world:
            for sharer in self._participants.find_handlers(WorldShared):
                await sharer.world_shared(session, identity, source_id, copy_id, copied)


async def _check_group(
    participants: Participants,
    session: AsyncSession,
    identity: Identity,
    before: ChatSettings,
    settings: ChatSettings,
) -> None:
    """Raise `ValidationError` if the settings of a group name someone new who does not exist.

    A deleted character must not prevent other changes.
    """
    named = {*settings.group.narrators, *settings.group.talkativeness}
    named -= {*before.group.narrators, *before.group.talkativeness}
    for handler in participants.find_handlers(CharactersNamed):
        await handler.characters_named(session, identity, named)


async def _find_fork_source(
    session: AsyncSession, identity: Identity, chat_id: UUID, message_id: UUID
) -> tuple[Chat, Message]:
    source = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
    message = await repository.get_message(session, message_id, owner_id=identity.user_id)
    if message.chat_id != source.id:
        raise ValidationError("The message belongs to another chat.")
    repository.check_finished(message)
    return source, message


def _check_no_embedding(patch: dict[str, Any]) -> None:
    tasks: object = patch.get("task_models")
    if isinstance(tasks, dict) and "embedding" in tasks:
        raise ValidationError(
            "task_models.embedding: a chat cannot have its own embedding model. A search covers "
            "lorebooks, chronicles and campaigns that several chats share, and vectors of "
            "two models cannot be compared. Set it in the account's settings."
        )


_COPY_MARK: Final = re.compile(r" \(copy(?: (\d{1,6}))?\)$")


def make_copy_title(title: str) -> str:
    """Return a title that says that the chat is a copy. Copies of copies are numbered."""
    found = _COPY_MARK.search(title)
    number = int(found[1] or 1) + 1 if found else 1
    mark = f" (copy {number})" if number > 1 else " (copy)"
    whole = title[: found.start()] if found else title
    return whole[: MAX_TITLE_CHARACTERS - len(mark)].rstrip() + mark


async def _copy_messages(
    session: AsyncSession,
    sealer: Sealer,
    pages: AsyncIterator[Sequence[Any]],
    copy_id: UUID,
    *,
    is_path: bool,
) -> dict[UUID, UUID]:
    """Copy messages into another chat, parents first. Return the copies by message.

    A path becomes the active one. Otherwise the active path is that of the source.
    """
    copied: dict[UUID, UUID] = {}
    rows: list[dict[str, Any]] = []
    flags = {"is_active": True, "is_selected": True} if is_path else {}
    async for page in pages:
        opened = iterate_in_slices(page, lambda row: 2 * len(row.sealed_content))
        rows += [copy_row(sealer, row, copy_id, copied) | flags async for row in opened]
    for part in split_chunks(rows, tree.INSERT_BATCH_SIZE):
        await session.execute(insert(Message), part)
    await copy_references(session, sealer, copied)
    return copied


def _mark(chat: Chat, change: ChatPatch, named: frozenset[str]) -> None:
    """Pin or archive a chat, or undo it. A pin and its time remain if it is set again."""
    if "pinned" in named:
        chat.pinned_at = (chat.pinned_at or now()) if change.pinned else None
    if "archived" in named:
        chat.archived_at = (chat.archived_at or now()) if change.archived else None


def _set_tags(sealer: Sealer, chat: Chat, tags: Sequence[str]) -> None:
    settings = read_settings(sealer, chat)
    _store_settings(sealer, chat, msgspec.structs.replace(settings, tags=clean_tags(tags)))


def _store_settings(sealer: Sealer, chat: Chat, settings: ChatSettings) -> None:
    kept = msgspec.structs.replace(settings, chronicle_enabled=False, chronicle_id=None)
    data = msgspec.json.encode(kept)
    chat.sealed_settings = sealer.seal_bytes(CHAT_SETTINGS, chat.id, data)


async def _load_view(session: AsyncSession, sealer: Sealer, chat: Chat) -> ChatView:
    [view] = (await ChatListRows.load(session, [chat])).open(sealer)
    return view
