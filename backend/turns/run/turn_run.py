"""One running turn: the reply of the model, and the listeners."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.accounts.models import KeyMode
from backend.chats.models import MessageStatus
from backend.core.logs import get_logger
from backend.database.base import new_id
from backend.errors import AppError, InternalError
from backend.generation.images import count_images
from backend.generation.model import (
    MAX_REPLY_CHARACTERS,
    ChatModel,
    Finish,
    FinishReason,
    ModelContextOverflowError,
    Piece,
    Prompt,
    SentRequest,
    TextPiece,
    TextReset,
    ThinkingPiece,
    ThinkingReset,
    TokenUsage,
)
from backend.generation.sampling import SamplingField
from backend.generation.servers.window_evidence import PromptCut, choose_window_after_cut, find_cut
from backend.generation.tokens import get_tokenizer
from backend.turns.models import Turn, TurnKind, TurnState
from backend.turns.play.state import TurnPlay
from backend.turns.prompt.built_prompt import (
    MAX_REBUILDS,
    BuiltPrompt,
    RefusedPrompt,
    describe_refusal,
    make_constraint,
)
from backend.turns.prompt.context import Constraint
from backend.turns.run.events import (
    CONTEXT_READY,
    SPEAKER_PASSED,
    EventCursor,
    Progress,
    Segment,
    SpokenKind,
    TurnEvent,
)
from backend.turns.run.reply_text import (
    PARAGRAPH,
    drop_pass,
    filter_speakers,
    find_joint,
    make_speaker_filter,
)
from backend.vault.sealing import Sealer

log = get_logger(__name__)

Rebuild = Callable[[BuiltPrompt, Constraint], Awaitable[BuiltPrompt]]
"""Builds the prompt of a turn again. See `PromptBuilder.rebuild`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlace:
    """The place of a turn among replies that follow each other by themselves.

    Attributes:
        chain_id: The first turn.
        number: The number of the turn, from 1.
        left: The number of replies that may follow.
        next_id: The id of the turn that follows, if one does.
    """

    chain_id: UUID
    number: int
    left: int
    next_id: UUID = field(default_factory=new_id)


@dataclass(slots=True, kw_only=True)
class TurnRun:
    """One running turn.

    Attributes:
        prefix: The text of a continued reply before the turn. `prefix_thinking` are its thoughts.
        status_before: The status of a continued reply before the turn.
        play: The state of a played turn.
        chain: The place of a turn among replies that follow each other by themselves.
        has_next: True if the next turn of the chain is reserved.
        has_passed: True if the character had nothing to say.
        rebuild: Builds the prompt again for the same line.
        refused: The prompts that the model refused as too long.
        cut: Set if the model's server has read only the end of a prompt.
        request_begin: The place in the transcript at which the current request begins.
        finished: Set when everything is stored.
        first_token_seconds: Time from `started_at`, when the prompt was ready, to the first text.
        is_asked: True once the model was asked. `usage` and `finish` come from the model.
        sent: The form of the requests.
        stored_length: The length of the stored transcript. `stored_events`, `stored_tokens` and
            `stored_drops` are the other stored numbers.
        rewritten: Text and thoughts after regex scripts, once the model has finished.
    """

    turn_id: UUID
    user_id: UUID
    chat_id: UUID
    kind: TurnKind
    reply_id: UUID | None
    sealer: Sealer = field(repr=False)
    key_mode: KeyMode
    is_administrator: bool
    model: ChatModel = field(repr=False)
    built: BuiltPrompt = field(repr=False)
    progress: Progress
    prefix: str = field(default="", repr=False)
    prefix_thinking: str = field(default="", repr=False)
    status_before: MessageStatus = "streaming"
    play: TurnPlay | None = None
    chain: ChainPlace | None = None
    has_next: bool = False
    has_passed: bool = False
    rebuild: Rebuild = field(repr=False)
    refused: list[RefusedPrompt] = field(default_factory=list[RefusedPrompt])
    cut: PromptCut | None = None
    request_begin: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    is_asked: bool = False
    usage: TokenUsage | None = None
    finish: FinishReason | Literal[""] = ""
    sent: SentRequest = field(default_factory=SentRequest)
    problem: AppError | None = None
    started_at: float = field(default_factory=time.monotonic)
    first_token_seconds: float | None = None
    stored_length: int = -1
    stored_events: int = 0
    stored_tokens: int = 0
    stored_drops: int = 0
    record_stored: bool = False
    rewritten: tuple[str, str] | None = field(default=None, repr=False)
    _begun: set[SpokenKind] = field(default_factory=set[SpokenKind])
    _waiters: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])
    _speaking: asyncio.Task[None] | None = None
    _stop_as: TurnState | None = None

    @classmethod
    def create(
        cls,
        identity: Identity,
        built: BuiltPrompt,
        turn: Turn,
        progress: Progress,
        *,
        rebuild: Rebuild,
    ) -> TurnRun:
        """Return the run of a stored turn, with the prompt that is sent first."""
        return cls(
            turn_id=turn.id,
            user_id=identity.user_id,
            chat_id=turn.chat_id,
            kind=turn.kind,
            reply_id=turn.reply_id,
            sealer=identity.sealer,
            key_mode=identity.key_mode,
            is_administrator=identity.user.is_administrator,
            model=built.window.model,
            built=built,
            progress=progress,
            rebuild=rebuild,
        )

    @property
    def unsent_settings(self) -> list[SamplingField]:
        """The sampling settings that are left out, because the model does not support them."""
        return list(dict.fromkeys((*self.built.window.unsent, *self.sent.left_out)))

    @property
    def text(self) -> str:
        """The reply so far, including the text that it continues."""
        return self.prefix + self._join("text")

    @property
    def thinking(self) -> str:
        return self.prefix_thinking + self._join("thinking")

    @property
    def prompt(self) -> Prompt:
        """The prompt of the next request, limited to the rest of the reply's characters."""
        transcript = self.progress.transcript
        new = max(len(transcript.join("text")), len(transcript.join("thinking")))
        whole = max(len(self.text), len(self.thinking))
        left = min(self.built.reply_limit - new, MAX_REPLY_CHARACTERS - whole)
        return replace(self.built.prompt, reply_limit=max(0, left))

    def _join(self, kind: SpokenKind) -> str:
        if self.rewritten is not None:
            return self.rewritten[kind == "thinking"]
        return self.progress.transcript.join(kind)

    def apply_scripts(self) -> None:
        """Apply regex scripts to the reply, once. CPU-bound.

        If they would remove the whole reply, it stays as it is, and so do thoughts without text.
        """
        scripts = self.built.loaded.scripts
        if (
            self.has_passed
            or scripts is None
            or self.rewritten is not None
            or self.kind == "impersonate"
        ):
            return
        scripts = scripts.renew()
        text, thinking = (self.progress.transcript.join(kind) for kind in ("text", "thinking"))
        new = scripts.run(text, "reply", "stored", depth=0)
        reasoning = scripts.run(thinking, "reasoning", "stored", depth=0) if thinking else ""
        new = new if new.strip() else text
        self.rewritten = (new, reasoning if new.strip() or reasoning.strip() else thinking)

    @property
    def segments(self) -> list[Segment]:
        """The lengths of the runs of thoughts, text and events, in order.

        Text that scripts have added comes last. Removed text leaves a gap, so that event ids do not
        change.
        """
        runs = self.progress.transcript.segments()
        kinds: tuple[SpokenKind, ...] = ("thinking", "text")
        for kind in kinds:
            more = len(self._join(kind)) - sum(length for each, length in runs if each == kind)
            if more > 0:
                runs.append((kind, more))
        return runs

    @property
    def has_spoken(self) -> bool:
        """True if the turn has added text to its reply. White space does not count."""
        return bool(self.progress.transcript.join("text").strip())

    @property
    def has_only_thoughts(self) -> bool:
        """True if a finished or continued reply has thoughts but no text. It is kept."""
        is_kept = self.outcome == "completed" or bool(self.prefix_thinking)
        return (
            self.reply_id is not None
            and is_kept
            and bool(self.thinking.strip())
            and not self.text.strip()
        )

    @property
    def adds_to_reply(self) -> bool:
        is_thought = self.has_only_thoughts and self.outcome == "completed"
        return self.has_spoken or is_thought or self.has_passed

    @property
    def has_stored(self) -> bool:
        """True if a choice of the turn has stored changes, which belong to its reply."""
        return self.play is not None and bool(self.play.table.state.stored.ids)

    @property
    def is_beat(self) -> bool:
        """True if the turn completes a reply. A reply counts once, even if it is continued."""
        return self.outcome == "completed" and self.status_before != "complete"

    def capture_token_count(self) -> Callable[[], int]:
        """Capture the reply. The returned function counts its unstored tokens and is CPU-bound."""
        tokenizer = self.built.window.stored_unit.tokenizer
        transcript, before = self.progress.transcript, 0
        text = transcript.join("text", since=max(0, self.stored_length))
        if transcript.drops > self.stored_drops:
            text, before = transcript.join("text"), self.stored_tokens
        return lambda: get_tokenizer(tokenizer).count(text) - before

    def spent_tokens(self) -> int:
        """Return the used tokens, estimated if the provider reported none. CPU-bound."""
        if self.usage is not None:
            return self.usage.prompt_tokens + self.usage.completion_tokens
        transcript = self.progress.transcript
        if not self.is_asked:
            return 0
        said = transcript.join("text") + transcript.join("thinking")
        if self.outcome == "failed" and not said and not (self.play and self.play.used):
            return 0  # the provider refused the request
        tokenizer = get_tokenizer(self.built.window.unit.tokenizer)
        requests = self.play.requests if self.play else 1
        return requests * self.built.assembled.tokens + tokenizer.count(said)

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_update(self, *, within: float) -> bool:
        """Wait for new output. False after `within` seconds of silence."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(within):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def events(self, last_id: int, *, beat: float) -> AsyncIterator[list[TurnEvent]]:
        """Yield new events after `last_id`, and an empty list after `beat` silent seconds."""
        cursor = EventCursor(last_id)
        while True:
            is_at_rest = self.progress.is_at_rest
            batch = cursor.next_events(self.progress)
            if batch:
                yield batch
            if is_at_rest:
                return
            if not batch and not await self.wait_for_update(within=beat):
                yield []

    def end_waiting(self, state: TurnState) -> None:
        """End a waiting turn that was stopped before it was stored."""
        self._stop_as = state

    def stop(self, *, state: TurnState = "stopped") -> None:
        """Stop the turn and keep its text. Does nothing if the model has finished."""
        if self._stop_as is None and not (self._speaking and self._speaking.done()):
            self._stop_as = state
            if self._speaking is not None:
                self._speaking.cancel()

    async def run_until_stopped(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run the request to the model until it ends or is stopped. Errors go to `problem`."""
        self._speaking = asyncio.create_task(answer)
        if self._stop_as is not None:
            self._speaking.cancel()
        try:
            await self._speaking
        except asyncio.CancelledError:
            if self._stop_as is None:
                # No one has stopped the turn, so the process is stopping.
                self._stop_as = "interrupted"
        except AppError as error:
            self.problem = error
        except Exception as error:  # an error in the code must end the turn and not block it
            log.exception("turn.crashed", turn_id=self.turn_id, exc_info=error)
            self.problem = InternalError("The server log has the details.")

    def show_problem(self, error: AppError) -> dict[str, Any]:
        """Return the data of `turn.failed`, with the members of the error that the user may see."""
        problem = error.to_problem(for_administrator=self.is_administrator)
        return {"turn_id": str(self.turn_id), **problem}

    @property
    def outcome(self) -> TurnState:
        if self.problem is not None:
            return "failed"
        if self._stop_as is None and self.play is not None and self.play.is_waiting:
            return "waiting"
        return self._stop_as or "completed"

    def _filter_pieces(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
        """Begin a request. Yields its pieces without labels and other speakers."""
        self.request_begin = self.progress.transcript.length
        self._begun.clear()
        has_text = bool(self.text.strip())
        said = filter_speakers(
            pieces, lambda: make_speaker_filter(self.built.loaded, has_text=has_text)
        )
        return drop_pass(said) if self.may_pass else said

    @property
    def may_pass(self) -> bool:
        """True if an empty reply or `PASS_MARK` means that the character has nothing to say."""
        return self.built.loaded.may_pass

    def pass_turn(self) -> None:
        """Record that the character has nothing to say, and emit `speaker.passed`."""
        self.has_passed = True
        speaker = self.built.loaded.cast.speaker
        data = {
            "turn_id": str(self.turn_id),
            "character_id": str(speaker.id),
            "name": speaker.name,
            "message_id": str(self.reply_id),
        }
        self.progress.transcript.append_event(SPEAKER_PASSED, data)
        self.notify()

    def drop(self, kind: SpokenKind, *, since: int) -> None:
        """Drop text or thoughts after the first `since` places, and add a reset event."""
        transcript = self.progress.transcript
        transcript.drop(kind, since=since)
        self._begun.discard(kind)
        left = self.text if kind == "text" else self.thinking
        transcript.append_event(f"{kind}.reset", {"length": len(left)})
        self.notify()

    async def stream(
        self,
        ask: Callable[[], AsyncGenerator[Piece, None]],
        *,
        count_extra: Callable[[BuiltPrompt], int] = lambda _: 0,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of one request. Rebuilds the prompt if the model refuses it as too long.

        Args:
            ask: Sends the request with the current prompt of `built`.
            count_extra: Counts the model's tokens that the request takes in addition to the prompt.
                May be CPU-bound.

        Raises:
            ModelContextOverflowError: The model has refused `MAX_REBUILDS` more prompts, or it had
                begun to answer.
            AppError: As `PromptBuilder.rebuild` does.
        """
        for rebuilds_left in reversed(range(MAX_REBUILDS + 1)):
            has_begun = False
            try:
                async with contextlib.aclosing(self._filter_pieces(ask())) as pieces:
                    async for piece in pieces:
                        has_begun = has_begun or not isinstance(piece, SentRequest)
                        if isinstance(piece, TokenUsage):
                            self._check_usage(piece)
                        yield piece
            except ModelContextOverflowError as error:
                if has_begun:
                    raise
                extra = await asyncio.to_thread(count_extra, self.built)
                refused = describe_refusal(error, self.built, extra=extra)
                self.refused.append(refused)
                if not rebuilds_left:
                    raise refused.complete(error) from error
                await self.rebuild_prompt(make_constraint(refused, self.built))
            else:
                return

    async def rebuild_prompt(self, constraint: Constraint) -> None:
        """Replace the prompt by a smaller one for the same line, and send its totals.

        Raises the errors of `PromptBuilder.rebuild`.
        """
        built = await self.rebuild(self.built, constraint)
        self.built = self.play.guide(built) if self.play is not None else built
        self.model, self.progress.totals = built.window.model, self.built.totals
        totals = msgspec.to_builtins(self.built.totals)
        self.progress.transcript.append_event(CONTEXT_READY, {"totals": totals})
        self.notify()

    def _check_usage(self, usage: TokenUsage) -> None:
        """Learn from the usage of one request whether the server has cut the prompt.

        Tools and rounds of calls are not counted. They only make the prompt longer. The tokens of
        images are only estimated, so a prompt with images shows nothing.
        """
        if count_images(self.built.prompt.messages):
            return
        window = self.built.window
        cut = find_cut(usage, counted=self.built.assembled.tokens, ratio=window.ratio)
        if cut is not None:
            self.cut = cut
            learned = choose_window_after_cut(cut, current=window.spec.usable_window)
            window.models.learn_window(window.spec.id, learned)

    def add(self, piece: Piece) -> None:
        match piece:
            case TextReset():
                self.drop("text", since=self.request_begin)
            case ThinkingReset():
                self.drop("thinking", since=self.request_begin)
            case TextPiece(text):
                self._append("text", text)
            case ThinkingPiece(text):
                self._append("thinking", text)
            case TokenUsage():
                self.usage = piece
            case Finish(reason):
                self.finish = reason
            case SentRequest(shape, left_out, images):
                left_out = tuple(dict.fromkeys((*self.sent.left_out, *left_out)))
                self.sent = SentRequest(shape, left_out, images)
            case _:
                pass

    def _append(self, kind: SpokenKind, text: str) -> None:
        """Add a piece, and separate the first one of a request from the reply so far."""
        if text and kind not in self._begun:
            self._begun.add(kind)
            if self.first_token_seconds is None:
                self.first_token_seconds = time.monotonic() - self.started_at
            if kind == "text":
                text = find_joint(self.text, text) + text
            elif self.thinking.strip() and not text[0].isspace():
                text = PARAGRAPH + text
        self.progress.transcript.append(kind, text)
        self.notify()
