"""Whether a provider works: what its server lists, and a first word of one of its models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from backend.accounts.identity import Identity
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import AppError
from backend.generation.figures import Ability, FiguresFrom, ListedModel, Price
from backend.generation.listing import list_models
from backend.generation.model import ChatModel, ModelError, ModelTimeoutError, Prompt, PromptMessage
from backend.generation.registry import OfferedProvider, UnknownModelError
from backend.generation.sampling import Sampling
from backend.llm.models import MAX_LISTED, ProviderConfig, by_name
from backend.llm.provider_service import ProviderService, find_provider
from backend.llm.user_models import UserModels
from backend.wire import ShownProblem

SECONDS = 60.0
"""How long a model gets for its first word: one that runs at home is loaded first."""

LISTED_BYTES = 200_000


class ProviderTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of its models is asked; the first where none is named."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class TestStep(msgspec.Struct, kw_only=True):
    """What was tried, and how it went. `detail` is for people."""

    step: Literal["models", "reply"]
    ok: bool
    milliseconds: int
    detail: str = ""


class ProviderTested(msgspec.Struct, kw_only=True):
    """How a provider does. `models` counts what its server lists, `model` was asked."""

    ok: bool
    steps: list[TestStep]
    models: int
    model: str | None
    problem: ShownProblem | None


class ListedModelView(msgspec.Struct, kw_only=True):
    """A model that a provider's server lists, or that its user named.

    `enabled`: it is on offer, as `id`. Figures as in `GET /models`.
    """

    name: str
    id: str
    title: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    abilities: list[Ability]
    figures_from: FiguresFrom
    enabled: bool


class ProviderListing(msgspec.Struct, kw_only=True):
    """What a provider's server listed at `listed_at`, and why it did not list it now."""

    items: list[ListedModelView]
    listed_at: datetime | None
    is_cut: bool
    problem: ShownProblem | None


class ProviderTests:
    """Tries providers out, and keeps what their servers list."""

    def __init__(
        self, database: Database, providers: ProviderService, user_models: UserModels
    ) -> None:
        self._database = database
        self._providers = providers
        self._user_models = user_models

    async def listing(
        self, identity: Identity, provider_id: UUID, *, refresh: bool
    ) -> ProviderListing:
        """What a provider's server lists, which is kept; with `refresh` it is asked.

        Raises `ProviderNotFoundError`. What fails on the provider's side is told in the answer.
        """
        async with self._database.read() as session:
            row = await find_provider(session, identity, provider_id)
        config, problem = self._providers.open(identity, row), None
        asked: list[OfferedProvider] = []
        if refresh:
            offered = self._user_models.offered(row, config)
            asked.append(offered)
            try:
                config = await self._listed(identity, provider_id, offered)
            except ModelError as error:
                problem = ShownProblem.of(error, for_administrator=True)
            finally:
                await offered.adapter.aclose()
        # All of them as if they were on offer: an empty choice is all that is listed.
        chosen, listed = by_name(config.models), by_name(config.listed)
        names = {**listed, **chosen}
        shown = replace(config, models=tuple(chosen.get(n) or ListedModel(name=n) for n in names))
        # By the same adapter, which has learned windows.
        offered = self._user_models.offered(row, shown, *asked)
        specs = [model.spec for name in names if (model := offered.get(name)) is not None]
        return ProviderListing(
            items=[
                ListedModelView(
                    name=spec.name,
                    id=spec.id,
                    title=spec.title,
                    context_window=spec.context_window,
                    max_output_tokens=spec.max_output_tokens,
                    price=spec.price,
                    abilities=sorted(spec.abilities),
                    figures_from=spec.figures_from,
                    enabled=spec.name in (chosen or listed),
                )
                for spec in specs
            ],
            listed_at=config.listed_at,
            is_cut=config.is_cut,
            problem=problem,
        )

    async def test(
        self, identity: Identity, provider_id: UUID, wanted: ProviderTest
    ) -> ProviderTested:
        """List the models, keep the list, and ask one for a word. Raises `ProviderNotFoundError`.

        What was learned of its server is forgotten: it may be another version by now. What fails
        on the provider's side is told in the answer.
        """
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            row.abilities, row.updated_at = None, now()
        config = self._providers.open(identity, row)
        offered = self._user_models.offered(row, config)
        steps: list[TestStep] = []
        problems: list[ShownProblem] = []

        async def tried(step: Literal["models", "reply"], work: Awaitable[str]) -> None:
            begun, detail, problem = time.monotonic(), "", None
            try:
                detail = await work
            except AppError as error:
                problem = ShownProblem.of(error, for_administrator=True)
                problems.append(problem)
            spent = round((time.monotonic() - begun) * 1000)
            detail = problem.detail if problem else detail
            steps.append(TestStep(step=step, ok=not problem, milliseconds=spent, detail=detail))

        async def listing() -> str:
            nonlocal offered
            kept = await self._listed(identity, provider_id, offered)
            offered = self._user_models.offered(row, kept, offered)
            return f"{len(kept.listed)} models"

        try:
            await tried("models", listing())
            # A server need not list what it serves.
            name = wanted.model or next(iter(offered.model_names), None)
            model = offered.get(name) if name else None
            if model is not None:
                await tried("reply", _first_word(model))
                # Some servers know the window of a model that is loaded alone.
                await offered.adapter.learn_windows([model.spec.name])
            elif name is not None or not problems:
                detail = "It lists no such model." if name else "It lists no models: name one."
                problems.append(ShownProblem.of(UnknownModelError(detail), for_administrator=True))
        finally:
            await offered.adapter.aclose()
        is_ok = bool(steps) and steps[-1].step == "reply" and steps[-1].ok
        return ProviderTested(
            ok=is_ok,
            steps=steps,
            models=len(offered.listed),
            model=name,
            problem=None if is_ok or not problems else problems[-1],
        )

    async def _listed(
        self, identity: Identity, provider_id: UUID, offered: OfferedProvider
    ) -> ProviderConfig:
        """Ask for the list, and keep it; what is too much of it is cut."""
        models = await list_models(offered.adapter)
        listed = models[:MAX_LISTED]
        while len(msgspec.json.encode(listed)) > LISTED_BYTES:
            listed = listed[: len(listed) * 9 // 10]
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            config = replace(
                self._providers.open(identity, row),
                listed=tuple(by_name(listed).values()),
                listed_at=now(),
                is_cut=len(listed) < len(models),
            )
            await self._providers.seal(session, identity, row, config)
        await self._providers.changed(identity, row)
        return config


async def _first_word(model: ChatModel) -> str:
    prompt = Prompt([PromptMessage("user", "Say hello in one word.")])
    try:
        async with (
            asyncio.timeout(SECONDS),
            aclosing(model.stream(prompt, Sampling())) as pieces,
        ):
            async for _ in pieces:
                return "It answers."
    except TimeoutError:
        raise ModelTimeoutError(f"Not a word in {SECONDS:g} s.") from None
    return "It ended without a word."
