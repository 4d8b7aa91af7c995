"""Suggest lines that the user could say next."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import Identity
from backend.chats.errors import ChatNotFoundError
from backend.chats.repository import find_chat
from backend.database.engine import Database
from backend.enrichment.reader import NAME_SETTING, limit_output, naming_setting
from backend.enrichment.runs.store import build_run, record_unlisted
from backend.generation.model import (
    ModelContextOverflowError,
    ModelEmptyReplyError,
    ModelMalformedAnswerError,
    ModelWritesNoJsonError,
    StructuredAnswer,
    TokenUsage,
)
from backend.llm.answers import CHARACTERS_PER_TOKEN, RunBudget
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Rank, SlotWork
from backend.quotas.ledgers import add_tokens
from backend.quotas.limits import TOKENS_PER_DAY
from backend.quotas.service import Quotas
from backend.turns.api.schemas import SuggestionRequest, Suggestions, TurnRequest
from backend.turns.errors import ChatChangedError
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.built_prompt import (
    MAX_REBUILDS,
    BuiltPrompt,
    describe_refusal,
    make_constraint,
)
from backend.turns.prompt.context import Constraint, get_version

_JSON_MEMBER = re.compile(r'"\w{1,40}"\s{0,9}:\s{0,9}(?:["{\[\d-]|true|false|null)')
"""A quoted name and a value, as in JSON. Speech does not contain this."""

_BRACKETS = re.compile(r"""^(?:\[|\{(?!\{))\s{0,9}(?:["'{\[\]}]|$)""")
"""The beginning of a JSON list or object. `[OOC: ...]` and `{{user}}` do not match."""

_SCHEMA_WORDS = frozenset(
    {
        *("lines", "items", "item", "type", "string", "strings", "array", "object", "properties"),
        *("required", "json", "schema", "enum"),
    }
)
"""A line with only these words repeats the schema."""

_BLANK_LINE = re.compile(r"\n[^\S\n]{0,99}\n")

_WORD = re.compile(r"[^\W_]+")

PATIENCE_SECONDS = 60.0
"""Suggestions wait at most this long for turns that use the same model."""

SUGGESTIONS_SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["lines"],
}


@dataclass(frozen=True, slots=True)
class SuggestedLines:
    """Lines that can be shown, and the numbers of dropped lines: with JSON, and empty ones."""

    lines: list[str]
    code: int
    empty: int

    @property
    def dropped(self) -> int:
        return self.code + self.empty


def read_suggestions(said: Iterable[str], *, most: int) -> SuggestedLines:
    """Return at most `most` lines that a user could say. Takes linear time."""
    lines: list[str] = []
    code = empty = 0
    for each in said:
        text = each.strip()
        if not text or _BLANK_LINE.search(text):
            empty += 1
        elif _is_code(text):
            code += 1
        else:
            lines.append(text)
    return SuggestedLines(lines[:most], code, empty)


def _is_code(text: str) -> bool:
    if "```" in text or _JSON_MEMBER.search(text):
        return True
    words = {word.lower() for word in _WORD.findall(text)}
    return bool(_BRACKETS.match(text)) or (bool(words) and words <= _SCHEMA_WORDS)


class _SuggestionsAnswer(msgspec.Struct):
    lines: list[str]


class SuggestionService:
    """Suggests lines. They are not stored, but their tokens are counted as a run of the chat."""

    def __init__(
        self, database: Database, builder: PromptBuilder, quotas: Quotas, slots: ModelSlots
    ) -> None:
        self._slots = slots
        self._database = database
        self._builder = builder
        self._quotas = quotas

    async def suggest(
        self, identity: Identity, chat_id: UUID, request: SuggestionRequest
    ) -> Suggestions:
        """Ask the model of the chat for lines that the user could say next.

        Raises the errors of `PromptBuilder.build`, `ModelError`, `QuotaExceededError`,
        `ModelBusyError` or `ChatChangedError` if turns come first for too long, and
        `ChatNotFoundError` if the chat was deleted while the model was working.
        """
        await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
        with self._quotas.turns.hold(identity.user_id):
            built, answer, seconds = await self._ask(identity, chat_id, request)
        written = len(str(answer.value)) // CHARACTERS_PER_TOKEN + 1
        usage = answer.usage or TokenUsage(built.assembled.tokens, written)
        spent = usage.prompt_tokens + usage.completion_tokens
        budget, model = RunBudget(spent), built.window.spec.id
        budget.count_call(usage, built.prompt)
        async with self._database.write() as session:
            chat = await find_chat(session, chat_id, owner_id=identity.user_id)
            if chat is None:
                await record_unlisted(session, identity.user_id, model, budget)
            else:
                await add_tokens(session, identity.user_id, spent)
                run = build_run(
                    chat,
                    "suggestions",
                    model=model,
                    positions=(0, 0),
                    budget=budget,
                    seconds=seconds,
                )
                session.add(run)
        if chat is None:
            raise ChatNotFoundError
        try:
            lines = msgspec.convert(answer.value, _SuggestionsAnswer).lines
        except msgspec.ValidationError:
            lines = []
        found = read_suggestions(lines, most=request.count)
        if not found.lines:
            raise _explain_no_suggestions(found)
        return Suggestions(items=found.lines, dropped=found.dropped)

    async def _ask(
        self, identity: Identity, chat_id: UUID, request: SuggestionRequest
    ) -> tuple[BuiltPrompt, StructuredAnswer, float]:
        """Ask the model. Ask again if a turn in another chat has taken its slot.

        If the model refuses the prompt as too long, a smaller one is built. Also returns the
        seconds that the answer took.
        """
        turn = TurnRequest(impersonate=True, viewpoint=request.viewpoint)
        until, version = time.monotonic() + PATIENCE_SECONDS, None
        constraint: Constraint | None = None
        refusals = 0
        while True:
            try:
                built = await self._builder.build(
                    identity, chat_id, turn, suggestions=request.count, constraint=constraint
                )
                # After a turn in this chat, the suggestions would be for an earlier line.
                if version not in {None, get_version(built.loaded.chat)}:
                    raise ChatChangedError("Ask for suggestions again.")
                version = get_version(built.loaded.chat)
                try:
                    return await self._ask_once(identity, built, until - time.monotonic())
                except ModelContextOverflowError as error:
                    refusals += 1
                    refused = describe_refusal(error, built, extra=0)
                    if refusals > MAX_REBUILDS:
                        raise refused.complete(error) from error
                    constraint = make_constraint(refused, built)
            except SlotTakenError:
                if time.monotonic() >= until:
                    raise ModelBusyError("Ask for suggestions again later.") from None

    async def _ask_once(
        self, identity: Identity, built: BuiltPrompt, patience: float
    ) -> tuple[BuiltPrompt, StructuredAnswer, float]:
        window, chat_id = built.window, built.loaded.chat.id
        limit = window.models.find_limit(window.spec.id)
        work = SlotWork(
            use="suggestions", rank=Rank.ASKED, user_id=identity.user_id, chat_id=chat_id
        )
        sampling = limit_output(built.sampling, window.spec)
        async with self._slots.hold([limit], work, patience=patience):
            began = time.monotonic()
            try:
                answer = await window.model.generate_json(
                    built.prompt, SUGGESTIONS_SCHEMA, sampling
                )
            except ModelWritesNoJsonError as error:
                raise naming_setting(error, "suggestions") from error
            return built, answer, time.monotonic() - began


def _explain_no_suggestions(
    found: SuggestedLines,
) -> ModelEmptyReplyError | ModelMalformedAnswerError:
    setting = NAME_SETTING.format(task="suggestions")
    if found.code:
        return ModelMalformedAnswerError(f"The model wrote JSON instead of messages. {setting}")
    return ModelEmptyReplyError(f"The model suggested nothing. Try again. {setting}")
