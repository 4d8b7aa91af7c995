"""Turns that wait for their player: what was chosen, and how they go on."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.chats.models import Message
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.generation.tokens import get_tokenizer
from backend.prompts import PromptLibrary
from backend.turns import repository
from backend.turns.api.schemas import ChoiceRequest, TurnRequest
from backend.turns.errors import ChatChangedError, ChoiceMadeError, TurnNotWaitingError
from backend.turns.models import Turn
from backend.turns.play.played_turn import Play
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.run.events import (
    AWAITING_CHOICE,
    CHOICE_MADE,
    READY_ID,
    Progress,
    Transcript,
    read_progress,
)
from backend.turns.run.resume import claim_turn, read_suspended, resume_play
from backend.turns.run.turn_run import TurnRun

log = get_logger(__name__)

ATTEMPTS = 3


class WaitingTurns:
    """Lets turns go on with what their player chose: in any process, and once."""

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
        self, identity: Identity, turn_id: UUID, choice: ChoiceRequest
    ) -> tuple[TurnRun | None, int]:
        """Claim a turn with a choice. The choice and its costs are stored in the same transaction.

        Returns the turn, to be run, or None if this choice was made before; and the id of the
        event before that of the choice.

        Raises `TurnNotFoundError`, `TurnNotWaitingError`, `ChoiceMadeError`, `ChatChangedError`,
        `ValidationError` for an option that the turn never had, and what `PromptBuilder.build`
        raises. Nothing changes then.
        """
        for attempt in range(ATTEMPTS):
            turn, reply, progress = await self._read(identity, turn_id)
            if (event_id := made_before(progress.transcript, choice)) is not None:
                return None, event_id
            if turn.state != "waiting" or reply is None:
                raise TurnNotWaitingError("It runs, or is over.")
            if not reply.is_active:
                raise ChatChangedError("The turn is on another branch. Activate its reply first.")
            run, play = await self._resumed(identity, turn, reply, progress, choice)
            if await claim_turn(self._database, run, play, before=turn.segments):
                return run, READY_ID + progress.transcript.length - 1
            log.info("turn.not_claimed", turn_id=turn_id, attempt=attempt)
        raise ChatChangedError("Look at it again, and choose once more.")

    async def made(self, identity: Identity, turn_id: UUID, choice: ChoiceRequest) -> int | None:
        """Return the id of the event before that of a choice that was made; None if it was not.

        Raises as `choose` does.
        """
        _, _, progress = await self._read(identity, turn_id)
        return made_before(progress.transcript, choice)

    async def _read(
        self, identity: Identity, turn_id: UUID
    ) -> tuple[Turn, Message | None, Progress]:
        async with self._database.read() as session:
            turn = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            reply = await session.get(Message, turn.reply_id) if turn.reply_id else None
        return turn, reply, read_progress(identity.sealer, turn, reply)

    async def _resumed(
        self,
        identity: Identity,
        turn: Turn,
        reply: Message,
        progress: Progress,
        choice: ChoiceRequest,
    ) -> tuple[TurnRun, Play]:
        """The turn as it goes on: its prompt is made again, from what came before its reply."""
        suspended = read_suspended(identity.sealer, turn)
        request = TurnRequest(regenerate_of=reply.id, viewpoint=suspended.viewpoint)
        built = await self._builder.build(identity, turn.chat_id, request)
        play, built = resume_play(suspended, built, self._prompts, choice)
        transcript = progress.transcript
        said = transcript.joined("text")
        run = TurnRun(
            turn_id=turn.id,
            user_id=identity.user_id,
            chat_id=turn.chat_id,
            kind=turn.kind,
            reply_id=reply.id,
            sealer=identity.sealer,
            key_mode=identity.key_mode,
            is_administrator=identity.user.is_administrator,
            model=built.window.model,
            built=built,
            progress=progress,
            play=play,
            rebuild=partial(self._builder.rebuild, identity, request),
            stored_length=transcript.length,
            stored_events=len(transcript.events),
            stored_tokens=get_tokenizer(built.window.stored_unit.tokenizer).count(said),
        )
        progress.is_waiting, progress.usage = False, None
        transcript.append_event(CHOICE_MADE, _chosen(choice))
        play.told_from = transcript.length
        return run, play


def _chosen(choice: ChoiceRequest) -> dict[str, str]:
    """Return the data of the event of a choice."""
    text = choice.text.strip()
    return {"option": choice.option, "text": text} if text else {"option": choice.option}


def made_before(transcript: Transcript, choice: ChoiceRequest) -> int | None:
    """Return the id of the event before that of a choice that was made; None if it is still open.

    Raises `ChoiceMadeError` if the same wait got another choice, and `ValidationError` if no wait
    had this option.
    """
    asked = False
    for name, data, place in transcript.since(0):
        if name == AWAITING_CHOICE:
            ids = {data.get("own") or None, *(each["id"] for each in data["options"])}
            asked = choice.option in ids
        elif name == CHOICE_MADE and asked:
            if data != _chosen(choice):
                raise ChoiceMadeError(data["option"])
            return READY_ID + place - 1
    if not asked:
        raise ValidationError("The turn does not wait for this option.")
    return None
