"""Lines that the user could say next: what the model is asked, and what that took."""

from __future__ import annotations

import time
from uuid import UUID

import msgspec

from backend.accounts.identity import Identity
from backend.chats.repository import get_chat
from backend.database.base import new_id
from backend.database.engine import Database
from backend.enrichment.budgets import CHARACTERS_A_TOKEN
from backend.enrichment.llm_selection import naming_setting
from backend.enrichment.models import EnrichmentRun
from backend.generation.model import (
    ModelContextOverflowError,
    ModelEmptyReplyError,
    ModelWritesNoJsonError,
    StructuredAnswer,
    TokenUsage,
)
from backend.quotas.definitions import TOKENS_PER_DAY
from backend.quotas.ledgers import add_tokens
from backend.quotas.service import Quotas
from backend.turns.builder import PromptBuilder
from backend.turns.built import Built
from backend.turns.prompt_context import Constraint
from backend.turns.refusals import MAX_REBUILDS, constraint_after, describe_refusal
from backend.turns.schemas import SuggestionRequest, TurnRequest

SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["lines"],
}


class _Suggested(msgspec.Struct):
    """What a model is to answer."""

    lines: list[str]


class SuggestionService:
    """Has lines suggested. Of them nothing is stored; what they took is a run of the chat's."""

    def __init__(self, database: Database, builder: PromptBuilder, quotas: Quotas) -> None:
        self._database = database
        self._builder = builder
        self._quotas = quotas

    async def suggest(
        self, identity: Identity, chat_id: UUID, request: SuggestionRequest
    ) -> list[str]:
        """Lines that the user could say next, made by the model of the same prompt.

        Raises what building a prompt raises, `ModelError`, and `QuotaExceededError`.
        """
        await self._quotas.check(TOKENS_PER_DAY, identity.user_id)
        with self._quotas.turns.hold(identity.user_id):
            began = time.monotonic()
            built, answer = await self._ask(identity, chat_id, request)
        seconds = time.monotonic() - began
        usage = answer.usage or TokenUsage(
            prompt_tokens=built.assembled.tokens,
            completion_tokens=len(str(answer.value)) // CHARACTERS_A_TOKEN + 1,
        )
        async with self._database.write() as session:
            await add_tokens(
                session, identity.user_id, usage.prompt_tokens + usage.completion_tokens
            )
            # It may have been deleted meanwhile.
            chat = await get_chat(session, chat_id, owner_id=identity.user_id)
            run = _run(identity.user_id, chat_id, built.window.spec.id, usage, seconds)
            run.campaign_id = chat.campaign_id
            session.add(run)
        try:
            lines = msgspec.convert(answer.value, _Suggested).lines
        except msgspec.ValidationError:
            lines = []
        texts = [text for line in lines if (text := line.strip())][: request.count]
        if not texts:
            raise ModelEmptyReplyError("It suggested nothing. Try again, or another model.")
        return texts

    async def _ask(
        self, identity: Identity, chat_id: UUID, request: SuggestionRequest
    ) -> tuple[Built, StructuredAnswer]:
        """Ask the model. A prompt that it refuses as too long is built again, smaller."""
        turn = TurnRequest(impersonate=True, viewpoint=request.viewpoint)
        constraint: Constraint | None = None
        refusals = 0
        while True:
            built = await self._builder.build(
                identity, chat_id, turn, suggestions=request.count, constraint=constraint
            )
            try:
                return built, await built.window.model.structured(
                    built.prompt, SCHEMA, built.sampling
                )
            except ModelWritesNoJsonError as error:
                raise naming_setting(error, "suggestions") from error
            except ModelContextOverflowError as error:
                refusals += 1
                refused = describe_refusal(error, built, extra=0)
                if refusals > MAX_REBUILDS:
                    raise refused.complete(error) from error
                constraint = constraint_after(refused, built)


def _run(
    user_id: UUID, chat_id: UUID, model: str, usage: TokenUsage, seconds: float
) -> EnrichmentRun:
    return EnrichmentRun(
        id=new_id(),
        user_id=user_id,
        chat_id=chat_id,
        kind="suggestions",
        state="done",
        model=model,
        from_position=0,
        to_position=0,
        calls=1,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        duration_ms=round(seconds * 1000),
    )
