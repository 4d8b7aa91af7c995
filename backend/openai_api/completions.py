"""Chat completions: with plain models, and in the chats of characters and campaigns.

The list of a request is read as a conversation, found among the account's chats, and decided about.
Then the chat is brought in line with it, and a turn writes the reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID
from weakref import WeakValueDictionary

from msgspec import structs

from backend.accounts.auth.identity import Identity
from backend.chats.service import ChatService
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.llm.user_models import UserModels
from backend.openai_api.chat_state import ChatStates
from backend.openai_api.choices import CHOOSE_ONE, parse_choice, render_options
from backend.openai_api.client_cast import CastReader, ClientCast, ClientTarget
from backend.openai_api.client_prompts import build_client_prompt, build_rest_prompt
from backend.openai_api.contracts import (
    ChatPlacement,
    ClientState,
    Decision,
    Line,
    SentConversation,
    StoreChoice,
    StoredConversation,
)
from backend.openai_api.conversation_writer import ConversationWriter
from backend.openai_api.conversations import ConversationFinder
from backend.openai_api.decisions import build_state, decide
from backend.openai_api.model_names import ModelNames, PlainTarget, StoredChatTarget
from backend.openai_api.models import RequestKind, RequestReason
from backend.openai_api.new_characters import CharacterMaker
from backend.openai_api.new_conversations import ConversationImporter
from backend.openai_api.open_turns import OpenTurns
from backend.openai_api.options import (
    CHAT_HEADER,
    IGNORED_HEADER,
    MESSAGE_HEADER,
    ClientOptions,
    list_names,
)
from backend.openai_api.plain_prompts import name_settings
from backend.openai_api.plain_replies import PlainCompletions
from backend.openai_api.reading import read_conversation
from backend.openai_api.requests import RequestDetails, RequestLog
from backend.openai_api.streaming import CompletionReply
from backend.openai_api.turn_reply import FixedReply, JoinedReply, TurnReply, TurnStatus
from backend.openai_api.wire import ChatCompletionRequest
from backend.turns.api.schemas import ChoiceRequest, TurnRequest
from backend.turns.api.service import TurnService
from backend.turns.errors import ChatChangedError, TurnInProgressError, TurnNotWaitingError
from backend.turns.prompt.client import ClientPrompt

log = get_logger(__name__)

MAX_ATTEMPTS = 4
"""Attempts to find the conversation again, if the chat changes at the same time."""

_CHARACTERS_PER_STEP = 10
"""Characters that are read as a conversation in the time of counting one character's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatRequest:
    """A request for a chat, with all that is known about it.

    Attributes:
        retries: The number of times that the client has sent the request before.
        started_at: The monotonic time at which the request was read.
    """

    identity: Identity
    request: ChatCompletionRequest
    options: ClientOptions
    cast: ClientCast
    reading: SentConversation
    retries: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecidedRequest:
    """A decided request. `state` is that of the chat before it."""

    placement: ChatPlacement
    state: ClientState
    decision: Decision


class ChatCompletions:
    """Answers requests for chat completions."""

    def __init__(  # noqa: PLR0913  # the application hands it its parts
        self,
        database: Database,
        pool: CpuPool,
        *,
        names: ModelNames,
        plain: PlainCompletions,
        user_models: UserModels,
        cast: CastReader,
        finder: ConversationFinder,
        writer: ConversationWriter,
        importer: ConversationImporter,
        characters: CharacterMaker,
        chats: ChatService,
        states: ChatStates,
        turns: TurnService,
        requests: RequestLog,
    ) -> None:
        self._database = database
        self._pool = pool
        self._names = names
        self._plain = plain
        self._user_models = user_models
        self._cast = cast
        self._finder = finder
        self._writer = writer
        self._importer = importer
        self._characters = characters
        self._chats = chats
        self._states = states
        self._turns = turns
        self._open_turns = OpenTurns(database, turns)
        self._requests = requests
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def start(
        self, identity: Identity, request: ChatCompletionRequest, options: ClientOptions
    ) -> CompletionReply:
        """Begin a reply of a model, a character, a chat or a campaign.

        Raises `ModelNameNotFoundError`, the errors of `PlainModels.start`, and for chats those of
        `ConversationWriter.apply`, `ConversationImporter.store` and `TurnService.take`.
        """
        started_at = time.monotonic()
        target = await self._find_target(identity, request, options)
        if isinstance(target, PlainTarget):
            reply = await self._plain.answer(identity, target.model_id, request)
            await self._requests.record(
                identity,
                kind="plain",
                reason="plain_model",
                chat_id=None,
                turn_id=None,
                instruction=None,
                details=RequestDetails(
                    model=request.model,
                    client=options.client,
                    ignored=tuple(reply.ignored),
                    milliseconds=_measure(started_at),
                ),
            )
            return reply
        cast = await self._cast.read(identity, target)
        reading = await self._pool.run(
            identity.user_id,
            partial(
                read_conversation,
                request.messages,
                cast.names,
                finds_tasks=options.store != "always",
            ),
            size=sum(len(message.text) for message in request.messages) // _CHARACTERS_PER_STEP,
        )
        case = _ChatRequest(
            identity=identity,
            request=request,
            options=options,
            cast=cast,
            reading=reading,
            retries=options.retry_count,
            started_at=started_at,
        )
        # Two requests at once must not both begin the same chat.
        async with self._hold(target.id):
            return await self._play(case)

    def _hold(self, key: UUID) -> asyncio.Lock:
        """Return the lock of a target, or of an account that gets a new character."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def _find_target(
        self, identity: Identity, request: ChatCompletionRequest, options: ClientOptions
    ) -> ClientTarget | PlainTarget:
        texts = [message.text for message in request.messages if message.role == "system"]
        target = await self._names.resolve(identity, request.model, texts)
        if options.chat_id is not None and not isinstance(target, PlainTarget):
            return StoredChatTarget(options.chat_id)
        if target is not None:
            return target
        if identity.settings.client.unknown_characters == "create" and any(texts):
            # Two requests at once must not both create the character.
            async with self._hold(identity.user_id):
                target = await self._names.resolve(identity, request.model, texts)
                return target or await self._characters.make(identity, texts)
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        return PlainTarget(identity.settings.model or models.default_id)

    async def _play(self, sent: _ChatRequest) -> CompletionReply:
        """Answer a request for a chat. Finds the place again if the chat changes meanwhile."""
        for _ in range(MAX_ATTEMPTS):
            case = await self._fold_choices(sent)
            found = await self._decide(case)
            kind = found.decision.kind
            if kind == "quiet" or (kind == "impersonate" and found.placement.chat_id is None):
                return await self._answer_quietly(case, found)
            if kind == "repeat":
                reply = await self._repeat(case, found)
                if reply is not None:
                    return reply
                sent = replace(sent, retries=0)
                continue
            chat_id = found.placement.chat_id
            turn = await self._open_turns.find(case.identity, chat_id) if chat_id else None
            if turn is not None:
                if turn.waiting is not None and kind == "impersonate":
                    # A draft of the player's answer leaves the question open.
                    return await self._answer_quietly(case, found)
                reply = await self._choose(case, found, turn)
                if reply is not None:
                    return reply
                await self._open_turns.end(case.identity, turn)
                continue
            try:
                reply = await self._take(case, found)
            except (TurnInProgressError, ChatChangedError) as error:
                log.info("client.chat_changed", chat_id=chat_id, problem=error.slug)
                continue
            if reply is not None:
                return reply
        raise ChatChangedError("Other requests change the chat at the same time. Try again.")

    async def _fold_choices(self, case: _ChatRequest) -> _ChatRequest:
        """Join the answers of replies that waited for choices."""
        lines = await self._states.fold_choices(case.identity, case.reading.lines)
        return replace(case, reading=replace(case.reading, lines=lines))

    async def _decide(self, case: _ChatRequest) -> _DecidedRequest:
        identity, reading = case.identity, case.reading
        is_last = bool(reading.lines) and reading.lines[-1].place == len(reading.messages) - 1
        placement = await self._finder.find(
            identity,
            reading.lines,
            case.cast.scope,
            may_be_prefill=is_last,
            is_retry=case.retries > 0,
        )
        state = ClientState()
        if placement.chat_id is not None:
            state = await self._states.load(identity, placement.chat_id)
        decision = decide(
            reading,
            placement,
            sealer=identity.sealer,
            state=state,
            rules=await self._requests.load_rules(identity),
            store=_read_store_choice(case.options),
            retries=case.retries,
        )
        return _DecidedRequest(placement=placement, state=state, decision=decision)

    async def _answer_quietly(self, case: _ChatRequest, found: _DecidedRequest) -> CompletionReply:
        """Answer with the chat's model, and store nothing."""
        chat_id = found.placement.chat_id
        model_id = await self._choose_model(case.identity, chat_id)
        headers = {CHAT_HEADER: str(chat_id)} if chat_id else {}
        reply = await self._plain.answer(
            case.identity, model_id, case.request, chat_id=chat_id, headers=headers
        )
        await self._record(case, found, chat_id=chat_id, turn_id=None, stored=0)
        return reply

    async def _choose_model(self, identity: Identity, chat_id: UUID | None) -> str:
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
        if chat_id is not None:
            settings, _ = await self._chats.read_settings(identity, chat_id)
            if settings.model is not None:
                return settings.model
        return identity.settings.model or models.default_id

    async def _repeat(self, case: _ChatRequest, found: _DecidedRequest) -> CompletionReply | None:
        """Join the turn of the first attempt. None if that turn was another one, or is deleted.

        The connection of the first attempt has broken, which stops its turn. Another turn then
        writes the rest of the reply.
        """
        identity, state, placement = case.identity, found.state, found.placement
        turns = await self._load_attempts(identity, state)
        chat_id = placement.chat_id
        if chat_id is None or not any(_is_about(each, placement) for each in turns):
            return None
        if turns[-1].state == "running":
            await self._open_turns.wait(identity, turns[-1])
        turn = await self._open_turns.get(identity, turns[-1].id)
        if turn is None or (turn.reply_id is None and turn.state not in {"running", "completed"}):
            return None
        headers = _make_headers(chat_id, turn, case.request, ())
        parts: list[TurnReply] = []
        for each in turns:
            is_first = not parts
            parts.append(
                self._follow(
                    case,
                    chat_id,
                    each,
                    headers=headers,
                    last_id=state.first_event if is_first else 0,
                    prefill=found.decision.prefill if is_first else "",
                )
            )
        if turn.state in {"stopped", "interrupted", "failed"}:
            rest = await self._take(case, found, continued=turn) if turn.text else None
            return JoinedReply([*parts, rest]) if rest else None
        await self._record(case, found, chat_id=chat_id, turn_id=turn.id, stored=0)
        return JoinedReply(parts)

    async def _load_attempts(self, identity: Identity, state: ClientState) -> list[TurnStatus]:
        """Return the turns that have written the last reply. Empty if the last one is deleted."""
        if state.turn_id is None:
            return []
        turns = [await self._open_turns.get(identity, each) for each in state.resumed]
        last = await self._open_turns.get(identity, state.turn_id)
        return [each for each in (*turns, last) if each is not None] if last else []

    async def _choose(
        self, case: _ChatRequest, found: _DecidedRequest, turn: TurnStatus
    ) -> CompletionReply | None:
        """Answer a waiting turn with the new line. None if the line does not follow its reply."""
        identity, placement = case.identity, found.placement
        chat_id, tail = placement.chat_id, found.decision.placement.tail
        if turn.waiting is None or chat_id is None or placement.last is None:
            return None
        if placement.last.id != turn.reply_id or [line.role for line in tail] != ["user"]:
            return None
        headers = _make_headers(chat_id, turn, case.request, ())
        choice = parse_choice(turn.waiting, tail[0].text)
        if choice is None:
            text = f"{CHOOSE_ONE}\n{render_options(turn.waiting)}"
            if turn.reply_id is not None:
                await self._states.add_part(identity, chat_id, turn.reply_id, text)
            await self._record(case, found, chat_id=chat_id, turn_id=turn.id, stored=0)
            return FixedReply(text, headers=headers)
        return await self._make_choice(case, found, turn, choice, headers)

    async def _make_choice(
        self,
        case: _ChatRequest,
        found: _DecidedRequest,
        turn: TurnStatus,
        choice: ChoiceRequest,
        headers: Mapping[str, str],
    ) -> CompletionReply | None:
        identity, chat_id = case.identity, found.placement.chat_id
        if chat_id is None:
            return None
        client = self._build_rest_prompt(case, found, turn, continues=False)
        try:
            last_id = await self._turns.choose(identity, turn.id, choice, client)
        except TurnNotWaitingError:
            return None
        await self._states.record_choice(identity, chat_id, turn.reply_id, first_event=last_id)
        await self._record(case, found, chat_id=chat_id, turn_id=turn.id, stored=0)
        return self._follow(case, chat_id, turn, headers=headers, last_id=last_id)

    async def _take(
        self, case: _ChatRequest, found: _DecidedRequest, *, continued: TurnStatus | None = None
    ) -> TurnReply | None:
        """Bring the chat in line with the list, and take the turn.

        If the turn writes the rest of a stopped one, which is `continued`, the chat stays as it is.
        Returns None if the chat has changed since it was read.
        """
        identity, decision = case.identity, found.decision
        placement = decision.placement
        lines, text = _split_tail(decision)
        request = _make_turn_request(decision, text)
        chat_id = placement.chat_id
        if chat_id is None:
            opened = await self._open_chat(case, lines)
            chat_id, lines = opened.chat_id, list(opened.lines)
        elif continued is None:
            stored = await self._writer.apply(
                identity,
                placement,
                lines,
                keeps_rest=request.regenerate_of is not None or request.impersonate,
            )
            if stored is None:
                return None
        try:
            turn_id = await self._begin_turn(case, found, chat_id, request, lines, continued)
        except BaseException:
            if placement.chat_id is None:
                # The next attempt begins with its own chat.
                await asyncio.shield(self._chats.delete(identity, chat_id))
            raise
        turn = await self._open_turns.get(identity, turn_id)
        if turn is None:
            return None
        state = build_state(case.reading, decision, sealer=identity.sealer, previous=found.state)
        await self._states.record_turn(
            identity, chat_id, state, turn_id, resumes=continued is not None
        )
        await self._record(
            case,
            found,
            chat_id=chat_id,
            turn_id=turn_id,
            stored=len(lines) + (request.text is not None),
        )
        unsent = name_settings(self._turns.list_unsent_settings(turn_id))
        return self._follow(
            case,
            chat_id,
            turn,
            headers=_make_headers(chat_id, turn, case.request, unsent),
            prefill="" if continued is not None else decision.prefill,
        )

    async def _begin_turn(
        self,
        case: _ChatRequest,
        found: _DecidedRequest,
        chat_id: UUID,
        request: TurnRequest,
        stored: Sequence[Line],
        continued: TurnStatus | None,
    ) -> UUID:
        """Take the turn. `stored` are the lines that were added to the chat before."""
        decision = found.decision
        request = await self._choose_speaker(case, decision, request, chat_id)
        if continued is not None:
            client = self._build_rest_prompt(case, found, continued, continues=True)
        else:
            client = build_client_prompt(
                case.request,
                case.reading,
                decision,
                _find_positions(case.reading, decision.placement, stored),
                options=case.options,
                settings=case.identity.settings.client,
            )
        return await self._turns.take(case.identity, chat_id, request, client)

    def _build_rest_prompt(
        self, case: _ChatRequest, found: _DecidedRequest, turn: TurnStatus, *, continues: bool
    ) -> ClientPrompt | None:
        return build_rest_prompt(
            case.request,
            turn,
            _find_positions(case.reading, found.placement, ()),
            continues=continues,
            window_start=found.placement.window_start,
            options=case.options,
            settings=case.identity.settings.client,
        )

    async def _open_chat(self, case: _ChatRequest, lines: Sequence[Line]) -> StoredConversation:
        """Store the lines of a list that matches nothing as a new chat."""
        identity, cast = case.identity, case.cast
        members = list(cast.member_ids)
        for each in cast.find_characters(case.reading.members):
            if each not in members:
                members.append(each)
        stored = await self._importer.store(
            identity, lines, character_ids=members, campaign_id=cast.campaign_id
        )
        if identity.settings.client.chronicle:
            await self._chats.patch_settings(
                identity, stored.chat_id, {"chronicle_enabled": True}, if_match=None
            )
        return stored

    async def _choose_speaker(
        self, case: _ChatRequest, decision: Decision, request: TurnRequest, chat_id: UUID
    ) -> TurnRequest:
        """Set the member that a nudge names, or the first one there if no line is answered."""
        if request.continue_ or request.impersonate:
            return request
        members = await self._cast.load_presences(chat_id)
        speaker = None
        if decision.speaker:
            speaker = case.cast.find_member(decision.speaker, list(members))
        if speaker is None and request.text is None:
            last = decision.placement.last
            if last is None or last.role == "assistant":
                there = (each for each, presence in members.items() if presence == "present")
                speaker = next(there, None)
        return structs.replace(request, speaker=speaker) if speaker else request

    def _follow(
        self,
        case: _ChatRequest,
        chat_id: UUID,
        turn: TurnStatus,
        *,
        headers: Mapping[str, str],
        last_id: int = 0,
        prefill: str = "",
    ) -> TurnReply:
        identity = case.identity
        return TurnReply(
            self._turns,
            identity,
            turn,
            headers=headers,
            record_part=partial(self._states.add_part, identity, chat_id),
            last_id=last_id,
            prefill=prefill,
            is_stream=case.request.is_stream,
        )

    async def _record(
        self,
        case: _ChatRequest,
        found: _DecidedRequest,
        *,
        chat_id: UUID | None,
        turn_id: UUID | None,
        stored: int,
    ) -> None:
        decision, placement = found.decision, found.decision.placement
        kind: RequestKind = decision.kind
        reason: RequestReason = decision.reason
        is_quiet = kind == "quiet"
        lines = case.reading.lines
        await self._requests.record(
            case.identity,
            kind=kind,
            reason=reason,
            chat_id=chat_id,
            turn_id=turn_id,
            instruction=decision.instruction or None,
            details=RequestDetails(
                model=case.request.model,
                client=case.options.client,
                lines=len(lines),
                matched=len(placement.pairs),
                edited=0 if is_quiet else len(placement.edits),
                hidden=0 if is_quiet else len(placement.hides),
                stored=stored,
                text=decision.instruction or (lines[-1].text if lines else ""),
                ignored=tuple(_list_ignored(case.request)),
                milliseconds=_measure(case.started_at),
            ),
        )


def _measure(started_at: float) -> int:
    """Return the milliseconds since a monotonic time."""
    return round((time.monotonic() - started_at) * 1_000)


def _read_store_choice(options: ClientOptions) -> StoreChoice | None:
    return None if options.store == "auto" else options.store


def _is_about(turn: TurnStatus, placement: ChatPlacement) -> bool:
    """True if a turn has answered the last line of a list, or written it."""
    last = placement.last
    return last is not None and last.id in {turn.user_message_id, turn.reply_id}


def _split_tail(decision: Decision) -> tuple[list[Line], str | None]:
    """Return the lines to store before the turn, and the text of the line that the turn stores."""
    tail = list(decision.placement.tail)
    if decision.kind != "turn" or not tail or tail[-1].role != "user":
        return tail, None
    line = tail.pop()
    return tail, line.text


def _make_turn_request(decision: Decision, text: str | None) -> TurnRequest:
    placement = decision.placement
    match decision.kind:
        case "continue" | "repeat":
            return TurnRequest(continue_=True)
        case "impersonate":
            return TurnRequest(impersonate=True)
        case "swipe" if placement.rest and placement.rest[0].role == "assistant":
            return TurnRequest(regenerate_of=placement.rest[0].id)
        case _:
            return TurnRequest(text=text)


def _find_positions(
    reading: SentConversation, placement: ChatPlacement, stored: Sequence[Line]
) -> dict[int, int]:
    """Return the positions on the stored path of a list's messages, by their place in the list."""
    positions = {
        reading.lines[index].place: message.position for index, message in placement.pairs.items()
    }
    for position, line in enumerate(stored, placement.next_position):
        positions[line.place] = position
    return positions


def _list_ignored(request: ChatCompletionRequest) -> list[str]:
    """Return the members of a request that have no effect in a chat."""
    named = {
        "n": request.count > 1,
        "tools": bool(request.tools),
        "response_format": request.format is not None,
    }
    return [*request.unknown, *(name for name, is_sent in named.items() if is_sent)]


def _make_headers(
    chat_id: UUID, turn: TurnStatus, request: ChatCompletionRequest, unsent: Sequence[str]
) -> dict[str, str]:
    headers = {CHAT_HEADER: str(chat_id)}
    if turn.reply_id is not None:
        headers[MESSAGE_HEADER] = str(turn.reply_id)
    if ignored := list_names([*_list_ignored(request), *unsent]):
        headers[IGNORED_HEADER] = ignored
    return headers
