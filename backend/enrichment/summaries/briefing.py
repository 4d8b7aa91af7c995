"""Draft briefings for characters that enter a chat, from the part that they have missed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.repository import find_names
from backend.chats.errors import ChatNotFoundError, MemberNotFoundError
from backend.chats.members import END, Group, load_group
from backend.chats.models import Chat
from backend.chats.repository import find_chat, get_chat
from backend.chats.schemas import MemberBriefing
from backend.chats.service import read_settings
from backend.core.audience import PUBLIC
from backend.database.engine import Database
from backend.enrichment.cleaning import clean_text, strip_tags
from backend.enrichment.errors import NothingMissedError
from backend.enrichment.reader import Reader, find_reader
from backend.enrichment.runs.store import build_run, record_unlisted
from backend.enrichment.story import is_between, read_lines, render_line
from backend.enrichment.summaries.pieces import load_pieces, take_newest
from backend.enrichment.summaries.store import MAX_SUMMARY_CHARS, load_summaries
from backend.enrichment.summaries.task import CHARS_PER_WORD, MAX_LENGTH_FACTOR, TOKENS_PER_WORD
from backend.errors import AppError
from backend.generation.declined_answers import check_declined
from backend.generation.model import ModelContextOverflowError, ModelEmptyReplyError
from backend.llm.answers import CHARACTERS_PER_TOKEN, RunBudget, build_prompt, collect
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Rank, SlotWork
from backend.llm.user_models import UserModels
from backend.prompts import PromptLibrary
from backend.quotas.ledgers import add_tokens
from backend.quotas.limits import TOKENS_PER_DAY
from backend.quotas.service import Quotas
from backend.settings import Settings

PATIENCE_SECONDS = 60.0
"""A draft waits at most this long for turns that use the same model."""

MIN_READ_TOKENS = 250
"""Below this, a prompt that is too long is too long because of its instructions."""

SUMMARIES_SHARE = 2
"""Summaries take at most half of the tokens that are read."""


class MissedPart(NamedTuple):
    """The positions that a character has missed: the first, and the one after the last."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The public part of the story that a character has missed, up to a budget.

    Attributes:
        reader: The model that writes the draft.
        name: The character's name.
        summaries: Pieces of the summary, oldest first.
        lines: The lines after them.
        positions: The first and the last position that is read.
        words: The length of the draft.
    """

    reader: Reader
    name: str
    summaries: Sequence[str]
    lines: Sequence[str]
    positions: tuple[int, int]
    words: int


class BriefingService:
    """Drafts briefings. They are not stored, but their tokens are counted as a run of the chat."""

    def __init__(
        self,
        database: Database,
        user_models: UserModels,
        settings: Settings,
        prompts: PromptLibrary,
        quotas: Quotas,
        slots: ModelSlots,
    ) -> None:
        self._database = database
        self._user_models = user_models
        self._settings = settings
        self._prompts = prompts
        self._quotas = quotas
        self._slots = slots

    async def draft(self, identity: Identity, chat_id: UUID, character_id: UUID) -> MemberBriefing:
        """Let the summary model write a briefing for a character that enters.

        It reads what is public: summaries of the missed part, and the lines after them. A member
        has missed what was said since it left. Another character has missed everything.

        Raises `ChatNotFoundError`, `MemberNotFoundError`, `NothingMissedError`,
        `UnknownModelError`, `ModelError`, `QuotaExceededError`, and `ModelBusyError` if turns come
        first for too long.
        """
        await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
        with self._quotas.turns.hold(identity.user_id):
            until, most = time.monotonic() + PATIENCE_SECONDS, 0
            while True:
                async with self._database.read() as session:
                    reading = await self._read(session, identity, chat_id, character_id, most=most)
                try:
                    return await self._write(identity, chat_id, reading, until - time.monotonic())
                except ModelContextOverflowError:
                    most = (most or reading.reader.stretch_tokens) // 2
                    if most < MIN_READ_TOKENS:
                        raise
                except SlotTakenError:
                    if time.monotonic() >= until:
                        raise ModelBusyError("Ask for the briefing again later.") from None

    async def _read(
        self,
        session: AsyncSession,
        identity: Identity,
        chat_id: UUID,
        character_id: UUID,
        *,
        most: int,
    ) -> _Reading:
        """Read at most `most` stored tokens of the missed part; 0 for the reader's own limit."""
        sealer, owner_id = identity.sealer, identity.user_id
        chat = await get_chat(session, chat_id, owner_id=owner_id)
        names = await find_names(session, [character_id], owner_id=owner_id, sealer=sealer)
        if character_id not in names:
            raise MemberNotFoundError
        group = await load_group(session, chat.id)
        missed = _find_missed(group, character_id)
        if missed is None:
            raise NothingMissedError(f"{names[character_id]} was there all the time.")
        reader = await find_reader(
            session, self._user_models, self._settings, sealer, chat, "summary"
        )
        most = most or reader.stretch_tokens
        pieces = await load_pieces(session, sealer, group)
        inside = [
            each
            for each in pieces.choose(PUBLIC)
            if missed.begin <= each.begins_at and each.position < missed.end
        ]
        kept = take_newest(inside, most=most * CHARACTERS_PER_TOKEN // SUMMARIES_SHARE)
        texts = await load_summaries(session, sealer, chat.id, [each.id for each in kept])
        told = [texts[each.id].text for each in kept if each.id in texts]
        after = inside[-1].position if inside else missed.begin - 1
        left = most - sum(map(len, told)) // CHARACTERS_PER_TOKEN
        lines, last = await self._read_lines(
            session, reader, chat, MissedPart(after + 1, missed.end), most=max(left, most // 4)
        )
        if not told and not lines:
            raise NothingMissedError(
                f"Nothing happened for everyone's ears while {names[character_id]} was away."
            )
        return _Reading(
            reader=reader,
            name=" ".join(names[character_id].split()),
            summaries=[strip_tags(each) for each in told],
            lines=lines,
            positions=(inside[0].begins_at if inside else missed.begin, max(after, last)),
            words=read_settings(sealer, chat).summary.words,
        )

    async def _read_lines(
        self, session: AsyncSession, reader: Reader, chat: Chat, part: MissedPart, *, most: int
    ) -> tuple[list[str], int]:
        """Return the last public lines of a part within `most` tokens, and the last position."""
        after, through = part.begin - 1, part.end - 1
        rows = await read_lines(
            session,
            chat,
            after=after,
            through=through,
            most=most,
            viewpoint=PUBLIC,
            is_newest_first=True,
        )
        if not rows:
            return [], after
        lines = [render_line(reader, row, most * CHARACTERS_PER_TOKEN) for row in rows]
        before = is_between(chat, after, rows[0].position - 1, PUBLIC)
        if omitted := await session.scalar(select(func.count()).where(*before)):
            lines.insert(0, self._prompts["sections/omitted"].render(count=omitted).strip())
        return lines, rows[-1].position

    async def _write(
        self, identity: Identity, chat_id: UUID, reading: _Reading, patience: float
    ) -> MemberBriefing:
        """Ask the model, and record the run, even if it failed."""
        budget = RunBudget(self._settings.enrichment_tokens_per_run)
        began, problem = time.monotonic(), None
        try:
            text = await self._ask(identity, chat_id, reading, budget, patience)
        except AppError as error:
            problem = error.slug
            raise
        finally:
            if budget.calls:
                await self._record(
                    identity,
                    chat_id,
                    reading,
                    budget,
                    seconds=time.monotonic() - began,
                    problem=problem,
                )
        async with self._database.read() as session:
            if await find_chat(session, chat_id, owner_id=identity.user_id) is None:
                raise ChatNotFoundError
        return MemberBriefing(text=text)

    async def _ask(
        self,
        identity: Identity,
        chat_id: UUID,
        reading: _Reading,
        budget: RunBudget,
        patience: float,
    ) -> str:
        reader, words = reading.reader, reading.words
        values = {"name": reading.name, "words": words}
        prompt = build_prompt(
            self._prompts["enrichment/briefing"].render(**values),
            self._prompts["enrichment/briefing_lines"].render(
                **values, summaries=reading.summaries, lines=reading.lines
            ),
        )
        tokens = words * MAX_LENGTH_FACTOR * TOKENS_PER_WORD
        model = reader.model
        sampling = reader.build_sampling(model, tokens)
        work = SlotWork(use="summary", rank=Rank.ASKED, user_id=identity.user_id, chat_id=chat_id)
        async with self._slots.hold(reader.limits, work, patience=patience):
            answer = await collect(model.stream(prompt, sampling), prompt, budget)
        text = clean_text(
            answer.text, min(MAX_SUMMARY_CHARS, words * MAX_LENGTH_FACTOR * CHARS_PER_WORD)
        )
        if not text:
            raise ModelEmptyReplyError
        check_declined(text)
        return text

    async def _record(
        self,
        identity: Identity,
        chat_id: UUID,
        reading: _Reading,
        budget: RunBudget,
        *,
        seconds: float,
        problem: str | None,
    ) -> None:
        """Count the tokens of a request, even if the chat was deleted in the meantime."""
        async with self._database.write() as session:
            model = reading.reader.model_id
            chat = await find_chat(session, chat_id, owner_id=identity.user_id)
            if chat is None:
                await record_unlisted(session, identity.user_id, model, budget)
                return
            spent = budget.prompt_tokens + budget.completion_tokens
            await add_tokens(session, identity.user_id, spent)
            session.add(
                build_run(
                    chat,
                    "briefing",
                    model=model,
                    positions=reading.positions,
                    budget=budget,
                    seconds=seconds,
                    error=problem,
                )
            )


def _find_missed(group: Group, character_id: UUID) -> MissedPart | None:
    """Return the part of the path that a character has missed last. None if it was always there."""
    if character_id not in group.members:
        return MissedPart(0, END)
    absences = group.find_absences(character_id)
    return MissedPart(*absences[-1]) if absences else None
