"""Store the start of a turn in one transaction, before the model is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.models import USER_VARIABLES, User
from backend.chats import repository as chats
from backend.chats import tree
from backend.chats.drafts import MessageDraft, make_message, seal_draft
from backend.chats.events import notify_path_moved
from backend.chats.files import (
    FileName,
    SealedFile,
    SealedReference,
    WaitingFile,
    claim_files,
    insert_files,
    seal_file,
    seal_reference,
)
from backend.chats.models import (
    CHAT_VARIABLES,
    MESSAGE_CONTENT,
    MESSAGE_CONTEXT,
    MESSAGE_THINKING,
    Chat,
    Message,
)
from backend.chats.token_counting import CountUnit
from backend.context.macros import Variables
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.database.writes import write_out
from backend.generation.model import PromptImage
from backend.prompts import PromptLibrary
from backend.turns import repository
from backend.turns.errors import NotContinuableError
from backend.turns.models import LEASE_DURATION, Turn
from backend.turns.play.state import TurnPlay
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.context import get_version
from backend.turns.prompt.speaker_choice import ChainEndedError
from backend.turns.run.events import Progress, make_speaker_data, make_started_data
from backend.turns.run.turn_run import ChainPlace, Rebuild, TurnRun
from backend.vault.sealing import OVERHEAD, Sealer


class TurnStarter:
    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        participants: Participants,
        prompts: PromptLibrary,
    ) -> None:
        self._prompts = prompts
        self._pool = pool
        self._participants = participants
        self._database = database

    async def start(
        self,
        identity: Identity,
        built: BuiltPrompt,
        turn_id: UUID,
        fingerprint: bytes,
        *,
        viewpoint: str | None,
        rebuild: Rebuild,
        chain: ChainPlace | None = None,
        replaced: UUID | None = None,
    ) -> TurnRun | None:
        """Store the user's line, a row for the reply, and the turn.

        `viewpoint` is the requested one. A turn that waits stores it. `chain` is the place of the
        turn among replies that follow each other by themselves. A later one is reserved already.
        `replaced` is a reserved turn that this one takes the place of.

        Returns None if the chat has changed since the prompt was built. Raises `OvertakenError` if
        another turn came first, `NotContinuableError`, `UnknownFileError`, and `ChainEndedError` if
        the reserved turn was stopped or replaced.
        """
        loaded, target = built.loaded, built.loaded.target
        line_draft = await self._draft_line(identity, built)
        async with self._database.write() as session:
            chat = await chats.get_chat(
                session, loaded.chat.id, owner_id=identity.user_id, lock=True
            )
            if get_version(chat) != get_version(loaded.chat):
                return None
            if replaced is not None:
                await repository.delete_reserved_turn(session, replaced)
            turn = await self._find_or_make_turn(session, identity, chat, turn_id, chain)
            turn.kind, turn.model, turn.request_digest = (
                target.kind,
                built.window.spec.id,
                fingerprint,
            )
            turn.totals = msgspec.json.encode(built.totals).decode()
            turn.lease_until = now() + LEASE_DURATION
            turn.user_message_id = target.line.id if target.line else None
            if loaded.story.campaign is not None:
                turn.path_tokens, turn.sent_tokens = built.path_tokens, built.sent_tokens
            parent = target.parent or target.leaf
            line: Message | None = None
            if line_draft is not None:
                line = Message(**line_draft.row, audience=loaded.audience)
                turn.user_message_id = line.id
                moved = await tree.attach_message(session, chat, line, parent=parent)
                if line_draft.references:
                    await session.flush()
                    if loaded.files:
                        await claim_files(session, identity.user_id, loaded.files)
                    await insert_files(
                        session, identity.user_id, line_draft.files, line_draft.references
                    )
                await notify_path_moved(self._participants, session, identity.sealer, chat, moved)
                await _save_variables(
                    session, identity.sealer, chat, loaded.stored_variables, built.variables
                )
            reply = await self._make_reply_row(session, identity, chat, built, line or parent)
            turn.reply_id = reply.id if reply else None
            chat.updated_at = now()
            continued = reply if target.continued else None
            run = self._make_run(identity, built, turn, continued, rebuild=rebuild, chain=chain)
            if loaded.story.table is not None:
                run.play = TurnPlay(
                    table=loaded.story.table,
                    prompts=self._prompts,
                    viewpoint=viewpoint,
                    may_wait=target.kind != "continue",
                )
            if reply is not None:
                reply.status = "streaming"
            session.add(turn)
            await write_out(session)
            return run

    async def _find_or_make_turn(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        turn_id: UUID,
        chain: ChainPlace | None,
    ) -> Turn:
        """Return the reserved turn of a chain, or a new one. Raises `ChainEndedError`."""
        owner = self._database.process_id
        if chain is not None and chain.chain_id != turn_id:
            turn = await session.get(Turn, turn_id, with_for_update=True, populate_existing=True)
            if turn is None or not turn.is_run_by(owner):
                raise ChainEndedError
            return turn
        turn = Turn(
            id=turn_id,
            user_id=identity.user_id,
            chat_id=chat.id,
            state="running",
            lease_owner=owner,
        )
        if chain is not None:
            turn.chain_id, turn.replies_left = chain.chain_id, chain.left
        return turn

    async def _draft_line(self, identity: Identity, built: BuiltPrompt) -> _SealedLine | None:
        """Seal and count the user's line and its images in a thread, before the transaction."""
        loaded = built.loaded
        if loaded.line is None:
            return None
        draft = MessageDraft(
            role="user",
            author=loaded.cast.user_name,
            text=loaded.line,
            typed=loaded.typed,
            persona_id=loaded.cast.persona_id,
        )
        unit = CountUnit.parse(loaded.chat.count_unit)
        said = loaded.client.line if loaded.client else None
        images = [each for each in said.images if each.data] if said else []
        return await self._pool.run(
            identity.user_id,
            partial(_seal_line, identity.sealer, draft, images, loaded.files, unit=unit),
            size=len(loaded.line) + sum(len(each.data) for each in images) // SEALED_FACTOR,
        )

    async def _make_reply_row(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        built: BuiltPrompt,
        parent: Message | None,
    ) -> Message | None:
        """Return the row of the reply. A continued reply keeps its row."""
        target, speaker = built.loaded.target, built.loaded.cast.speaker
        if target.kind == "impersonate":
            return None
        if target.continued is not None:
            message = await session.get_one(Message, target.continued.id)
            if await tree.has_others_below(
                session, message.id, await _list_followers(session, message)
            ):
                raise NotContinuableError(
                    "The message has a reply on another branch. Edit it to create a new branch."
                )
            if len(message.sealed_content) == OVERHEAD:
                # It was hidden because it had only thoughts.
                tree.set_unfollowed_hidden(chat, message, hidden=False)
            _store_injected_context(identity.sealer, message, built)
            return message
        reply = make_message(
            identity.sealer,
            MessageDraft(
                role="assistant",
                author=speaker.name,
                text="",
                character_id=speaker.id,
                status="streaming",
            ),
            unit=CountUnit.parse(chat.count_unit),
        )
        reply.audience = built.loaded.audience
        _store_injected_context(identity.sealer, reply, built)
        moved = await tree.attach_message(session, chat, reply, parent=parent)
        await notify_path_moved(self._participants, session, identity.sealer, chat, moved)
        return reply

    def _make_run(
        self,
        identity: Identity,
        built: BuiltPrompt,
        turn: Turn,
        continued: Message | None,
        *,
        rebuild: Rebuild,
        chain: ChainPlace | None,
    ) -> TurnRun:
        sealer = identity.sealer
        prefix = thinking = ""
        if continued is not None:
            prefix = sealer.open(MESSAGE_CONTENT, continued.id, continued.sealed_content)
            if continued.sealed_thinking:
                thinking = sealer.open(MESSAGE_THINKING, continued.id, continued.sealed_thinking)
        turn.prefix_length = len(prefix)
        turn.thinking_prefix_length = len(thinking)
        speaker = built.loaded.cast.speaker
        progress = Progress(
            started=make_started_data(turn),
            speaker=make_speaker_data(turn, speaker.id, speaker.name, chain.number if chain else 0),
            replies_left=chain.left if chain else 0,
            totals=built.totals,
        )
        run = TurnRun.create(identity, built, turn, progress, rebuild=rebuild)
        run.chain = chain
        run.prefix, run.prefix_thinking = prefix, thinking
        if continued is not None:
            run.status_before = continued.status
        return run


async def _list_followers(session: AsyncSession, message: Message) -> list[UUID]:
    """Return a reply that is continued, and what follows it on the active path.

    `find_target` has found that these are changes of presence and briefings.
    """
    query = select(Message.id).where(
        Message.chat_id == message.chat_id,
        Message.is_active,
        Message.position >= message.position,
    )
    return list(await session.scalars(query))


@dataclass(frozen=True, slots=True)
class _SealedLine:
    """The columns of the user's line, and its images."""

    row: dict[str, Any]
    files: Sequence[SealedFile]
    references: Sequence[SealedReference]


def _seal_line(
    sealer: Sealer,
    draft: MessageDraft,
    images: Sequence[PromptImage],
    stored: Sequence[WaitingFile],
    *,
    unit: CountUnit,
) -> _SealedLine:
    """Seal a line with the images of a client, or with uploaded files, which are stored already."""
    row = seal_draft(sealer, draft, unit=unit)
    files = [seal_file(sealer, each.data, media_type=each.media_type) for each in images]
    named = [("", each.digest) for each in files]
    named += [(each.description.name, each.digest) for each in stored]
    references = [
        seal_reference(sealer, row["id"], FileName(name=name, path=""), place=place, digest=digest)
        for place, (name, digest) in enumerate(named)
    ]
    return _SealedLine(row, files, references)


def _store_injected_context(sealer: Sealer, reply: Message, built: BuiltPrompt) -> None:
    """Store the text that the campaign has added to the prompt with the reply."""
    if campaign := built.loaded.story.campaign:
        data = msgspec.json.encode(campaign.block.injected)
        reply.sealed_injected_context = sealer.seal_bytes(MESSAGE_CONTEXT, reply.id, data)


async def _save_variables(
    session: AsyncSession, sealer: Sealer, chat: Chat, before: Variables, after: Variables
) -> None:
    """Store the variables that macros have changed. `limit_variables` has checked their size."""
    if after.local is not before.local:
        data = msgspec.json.encode(dict(after.local))
        chat.sealed_variables = sealer.seal_bytes(CHAT_VARIABLES, chat.id, data)
    if after.global_ is not before.global_:
        data = msgspec.json.encode(dict(after.global_))
        await session.execute(
            update(User)
            .where(User.id == sealer.user_id)
            .values(sealed_variables=sealer.seal_bytes(USER_VARIABLES, sealer.user_id, data))
        )
