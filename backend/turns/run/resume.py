"""Resume turns that wait for a choice of their player."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy import update

from backend.accounts.auth.identity import Identity
from backend.campaigns.play.table import Table
from backend.chats import repository as chats
from backend.chats.models import Message
from backend.core.logs import get_logger
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ConflictError, ValidationError
from backend.generation.tokens import get_tokenizer
from backend.prompts import PromptLibrary
from backend.turns import repository
from backend.turns.api.schemas import ChoiceRequest, TurnRequest
from backend.turns.errors import ChatChangedError, ChoiceMadeError, TurnNotWaitingError
from backend.turns.models import LEASE_DURATION, TURN_PLAY, Turn
from backend.turns.play.state import SuspendedPlay, TurnPlay
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.prompt.client import ClientPrompt
from backend.turns.prompt.context import get_version
from backend.turns.run.events import (
    AWAITING_CHOICE,
    CHOICE_MADE,
    READY_ID,
    Progress,
    Transcript,
    read_progress,
)
from backend.turns.run.store import (
    encode_segments,
    record_changes,
    seal_events,
)
from backend.turns.run.turn_run import TurnRun
from backend.vault.sealing import Sealer

log = get_logger(__name__)

MAX_ATTEMPTS = 3


def read_suspended(sealer: Sealer, turn: Turn) -> SuspendedPlay:
    if turn.sealed_play is None:
        raise ValueError("The turn does not wait.")
    data = sealer.open_bytes(TURN_PLAY, turn.id, turn.sealed_play)
    return msgspec.json.decode(data, type=SuspendedPlay)


def resume_play(
    suspended: SuspendedPlay, built: BuiltPrompt, prompts: PromptLibrary, choice: ChoiceRequest
) -> tuple[TurnPlay, BuiltPrompt]:
    """Return the state and the prompt of a waiting turn after the player's choice.

    Raises `ConflictError` if the chat is no longer played in the same campaign, and
    `ValidationError` if the turn does not wait for this choice.
    """
    fresh, table = built.loaded.story.table, Table.load(suspended.table)
    if fresh is None or fresh.state.campaign_id != table.state.campaign_id:
        raise ConflictError("The chat is no longer in this campaign. Stop the turn.")
    table.names, table.viewpoint = fresh.names, fresh.viewpoint
    table.state.shown_place = fresh.state.shown_place
    table.state.shows_people = fresh.state.shows_people
    play = TurnPlay(
        table=table,
        prompts=prompts,
        rounds=suspended.rounds,
        used=suspended.used,
        viewpoint=suspended.viewpoint,
        earlier=suspended.earlier,
    )
    play.choose(choice)
    return play, play.guide(built)


async def claim_turn(database: Database, run: TurnRun, play: TurnPlay, *, before: str) -> bool:
    """Claim a waiting turn for this process. False if it no longer waits or its chat has changed.

    All changes of the table are stored in the same transaction as changes of the reply. Therefore
    the choice is kept even if the rest of the turn is lost.

    `before` are the segments of the turn as they were read. Each wait has different ones, so a late
    choice cannot answer a later wait. A single statement claims the turn, so only one process
    succeeds.
    """
    loaded = run.built.loaded
    async with database.write() as session:
        chat = await chats.get_chat(session, run.chat_id, owner_id=run.user_id, lock=True)
        if get_version(chat) != get_version(loaded.chat):
            return False
        claimed = (
            update(Turn)
            .where(
                Turn.id == run.turn_id,
                Turn.user_id == run.user_id,
                Turn.state == "waiting",
                Turn.segments == before,
            )
            .values(
                state="running",
                model=run.built.window.spec.id,
                lease_owner=database.process_id,
                lease_until=now() + LEASE_DURATION,
                segments=encode_segments(run),
                sealed_events=seal_events(run),
                sealed_play=None,
            )
            .returning(Turn.id)
            .execution_options(synchronize_session=False)
        )
        if await session.scalar(claimed) is None:
            return False
        reply = await session.get_one(Message, run.reply_id)
        new = await record_changes(session, play.table, run, chat, reply)
    play.table.note_stored(new.ids, left_out=new.left_out)
    return True


class TurnResumer:
    """Resumes waiting turns with the player's choice: in any process, and only once."""

    def __init__(
        self,
        database: Database,
        builder: PromptBuilder,
        prompts: PromptLibrary,
    ) -> None:
        self._database = database
        self._builder = builder
        self._prompts = prompts

    async def choose(
        self,
        identity: Identity,
        turn_id: UUID,
        choice: ChoiceRequest,
        client: ClientPrompt | None,
    ) -> tuple[TurnRun | None, int]:
        """Claim a turn with a choice. The choice and its costs are stored in the same transaction.

        The rest of the turn has the prompt of a `client`, if there is one.

        Returns the turn to run, or None if this choice was made before; and the id of the event
        before that of the choice.

        Raises `TurnNotFoundError`, `TurnNotWaitingError`, `ChoiceMadeError`, `ChatChangedError`,
        `ValidationError` for an unknown option, and the errors of `PromptBuilder.build`. Nothing
        changes then.
        """
        for attempt in range(MAX_ATTEMPTS):
            turn, reply, progress = await self._read(identity, turn_id)
            if (event_id := find_choice_id(progress.transcript, choice)) is not None:
                return None, event_id
            if turn.state != "waiting" or reply is None:
                raise TurnNotWaitingError("The turn is running or has ended.")
            if not reply.is_active:
                raise ChatChangedError("The turn is on another branch. Activate its reply first.")
            run, play = await self._resume(identity, turn, reply, progress, choice, client)
            made_id = find_choice_id(progress.transcript, choice)
            if made_id is not None and await claim_turn(
                self._database, run, play, before=turn.segments
            ):
                return run, made_id
            log.info("turn.not_claimed", turn_id=turn_id, attempt=attempt)
        raise ChatChangedError("Read the chat again, and choose again.")

    async def find_made_choice(
        self, identity: Identity, turn_id: UUID, choice: ChoiceRequest
    ) -> int | None:
        """Return the id of the event before that of a choice that was made.

        None if it was not made.

        Raises the errors of `choose`.
        """
        _, _, progress = await self._read(identity, turn_id)
        return find_choice_id(progress.transcript, choice)

    async def _read(
        self, identity: Identity, turn_id: UUID
    ) -> tuple[Turn, Message | None, Progress]:
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
            number = await repository.find_chain_number(session, turn)
        return turn, reply, read_progress(identity.sealer, turn, reply, number=number)

    async def _resume(
        self,
        identity: Identity,
        turn: Turn,
        reply: Message,
        progress: Progress,
        choice: ChoiceRequest,
        client: ClientPrompt | None,
    ) -> tuple[TurnRun, TurnPlay]:
        """Return the resumed turn. Its prompt is built again from the messages before its reply."""
        suspended = read_suspended(identity.sealer, turn)
        request = TurnRequest(regenerate_of=reply.id, viewpoint=suspended.viewpoint)
        built = await self._builder.build(identity, turn.chat_id, request, client=client)
        play, built = resume_play(suspended, built, self._prompts, choice)
        transcript = progress.transcript
        said = transcript.join("text")
        rebuild = partial(self._builder.rebuild, identity, request)
        run = TurnRun.create(identity, built, turn, progress, rebuild=rebuild)
        run.play = play
        run.stored_length = transcript.length
        run.stored_events = len(transcript.events)
        run.stored_tokens = get_tokenizer(built.window.stored_unit.tokenizer).count(said)
        progress.is_waiting, progress.usage = False, None
        transcript.append_event(CHOICE_MADE, _make_choice_data(choice))
        play.told_from = transcript.length
        return run, play


def _make_choice_data(choice: ChoiceRequest) -> dict[str, str]:
    text = choice.text.strip()
    return {"option": choice.option, "text": text} if text else {"option": choice.option}


def find_choice_id(transcript: Transcript, choice: ChoiceRequest) -> int | None:
    """Return the id of the event before that of a choice. None if the choice is still open.

    Raises `ChoiceMadeError` if the wait has got another choice, and `ValidationError` if no wait
    has had this option.
    """
    asked = False
    for name, data, place in transcript.since(0):
        if name == AWAITING_CHOICE:
            ids = {data.get("own") or None, *(each["id"] for each in data["options"])}
            asked = choice.option in ids
        elif name == CHOICE_MADE and asked:
            if data != _make_choice_data(choice):
                raise ChoiceMadeError(data["option"])
            return READY_ID + place - 1
    if not asked:
        raise ValidationError("The turn does not offer this option.")
    return None
