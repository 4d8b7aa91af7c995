"""Tests of providers: the list of their models, and the beginning of a reply of one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from backend.accounts.auth.identity import Identity
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import AppError
from backend.generation.catalogue import (
    Ability,
    FiguresFrom,
    ListedModel,
    MessageShape,
    Price,
    ToolSupport,
)
from backend.generation.client.network import AddressRefusedError, RefusedAddress
from backend.generation.model import (
    ChatModel,
    ModelEmptyReplyError,
    ModelError,
    ModelTimeoutError,
    Prompt,
    PromptMessage,
    SentRequest,
    TextPiece,
    ThinkingPiece,
)
from backend.generation.registry import OfferedProvider, UnknownModelError
from backend.generation.sampling import Sampling
from backend.generation.servers.listing import MAX_LISTED, list_models
from backend.http.schemas import ShownProblem
from backend.llm.models import (
    InstallationProvider,
    Provider,
    ProviderConfig,
    by_name,
)
from backend.llm.providers.schemas import NewProvider
from backend.llm.providers.service import ProviderService, find_provider
from backend.llm.user_models import UserModels

T = TypeVar("T")

SECONDS = 60.0
"""Time for the beginning of a reply: a local program loads the model first."""

LISTED_BYTES = 200_000


class ProviderTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of its models is asked; the first where none is named."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class NewProviderTest(NewProvider, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider that is not stored, and which of its models is asked."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class TestStep(msgspec.Struct, kw_only=True):
    """What was tried, and how it went. `detail` is for people."""

    step: Literal["models", "reply"]
    ok: bool
    milliseconds: int
    detail: str = ""


class TestProblem(ShownProblem, kw_only=True, frozen=True):
    """The cause of a failed test. `address` is one that is refused."""

    address: RefusedAddress | None = None


class TestedModel(msgspec.Struct, kw_only=True):
    """The model that answered a test, with the facts that are known since.

    `shape` is the message shape in which the test was sent to it. Figures as in `GET /models`.
    """

    name: str
    shape: MessageShape
    context_window: int
    figures_from: FiguresFrom


class ProviderTested(msgspec.Struct, kw_only=True):
    """The result of a test. `models` counts the models that the server lists, `model` was asked.

    `answered` is that model if it answered.
    """

    ok: bool
    steps: list[TestStep]
    models: int
    model: str | None
    answered: TestedModel | None
    problem: TestProblem | None


class ListedModelView(msgspec.Struct, kw_only=True):
    """A model that a provider's server lists, or that its user named.

    `enabled`: it is on offer, as `id`. Figures as in `GET /models`. `tool_support` and
    `message_shape` are what the user set, else what was learned, else what is usual.
    """

    name: str
    id: str
    title: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    abilities: list[Ability]
    figures_from: FiguresFrom
    tool_support: ToolSupport
    message_shape: MessageShape
    enabled: bool


class ProviderListing(msgspec.Struct, kw_only=True):
    """What a provider's server listed at `listed_at`, and why it did not list it now."""

    items: list[ListedModelView]
    listed_at: datetime | None
    is_cut: bool
    problem: TestProblem | None


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
        problem = await self._refresh(identity, provider_id) if refresh else None
        async with self._database.read() as session:
            row = await find_provider(session, identity, provider_id)
        config = self._providers.open(identity, row)
        # All of them as if they were on offer: an empty choice is all that is listed.
        chosen, listed = by_name(config.models), by_name(config.listed)
        names = {**listed, **chosen}
        shown = replace(config, models=tuple(chosen.get(n) or ListedModel(name=n) for n in names))
        offered = self._user_models.offered(row, shown)
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
                    tool_support=spec.tool_support,
                    message_shape=spec.shape,
                    enabled=spec.name in (chosen or listed),
                )
                for spec in specs
            ],
            listed_at=config.listed_at,
            is_cut=config.is_cut,
            problem=problem,
        )

    async def _refresh(self, identity: Identity, provider_id: UUID) -> TestProblem | None:
        """Ask a provider's server for its list and for windows that are not in it; keep both."""
        async with self._database.read() as session:
            row = await find_provider(session, identity, provider_id)
        offered = self._user_models.offered(row, self._providers.open(identity, row))
        try:
            found = await list_models(offered.adapter)
        except ModelError as error:
            return report_problem(error)
        finally:
            await offered.adapter.aclose()
        await self._user_models.settle()
        await self._keep(identity, provider_id, partial(_with_list, found=found))
        return None

    async def test(
        self, identity: Identity, provider_id: UUID, wanted: ProviderTest
    ) -> ProviderTested:
        """List the models, keep the list, and have one reply. Raises `ProviderNotFoundError`.

        Everything learned of its server before is forgotten, because it may be another version by
        now. The answer reports errors of the provider.
        """
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            row.abilities, row.updated_at = None, now()
        config = self._providers.open(identity, row)

        async def keep(found: Sequence[ListedModel]) -> ProviderConfig:
            return await self._keep(identity, provider_id, partial(_with_list, found=found))

        tested = await _ProviderTest(self._user_models, row, config, keep).run(wanted.model)
        # Registries that were opened during the test do not know its results.
        await self._user_models.settle()
        is_marked = config.failed_test and not tested.ok
        await self._keep(identity, provider_id, partial(replace, failed_test=is_marked))
        return tested

    async def test_new(self, identity: Identity, new: NewProviderTest) -> ProviderTested:
        """Test a provider that is not stored, in the same way. Nothing is kept.

        Raises as `ProviderService.create` does.
        """
        row, config = await self._providers.draft(identity, new)

        async def keep(found: Sequence[ListedModel]) -> ProviderConfig:
            return _with_list(config, found=found)

        return await _ProviderTest(self._user_models, row, config, keep).run(new.model)

    async def _keep(
        self,
        identity: Identity,
        provider_id: UUID,
        change: Callable[[ProviderConfig], ProviderConfig],
    ) -> ProviderConfig:
        """Store results of a test. The revision stays the same, because no setting changes."""
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            config = change(self._providers.open(identity, row))
            await self._providers.seal(session, identity, row, config)
        await self._providers.changed(identity, row)
        return config


class _ProviderTest:
    """One test of a provider: its server lists its models, and one of them replies.

    `keep` gets the list, and returns the config with it.
    """

    def __init__(
        self,
        user_models: UserModels,
        row: Provider | InstallationProvider,
        config: ProviderConfig,
        keep: Callable[[Sequence[ListedModel]], Awaitable[ProviderConfig]],
    ) -> None:
        self._user_models = user_models
        self._row = row
        self._config = config
        self._keep = keep
        self._steps: list[TestStep] = []
        self._problem: TestProblem | None = None

    async def run(self, model: str | None) -> ProviderTested:
        """Test it with the model of this name, else with the first on offer.

        A model that is named is asked in any case, because servers need not list all models.
        """
        answered: TestedModel | None = None
        offered = self._user_models.offered(self._row, self._config)
        try:
            listed = await self._try("models", self._list(offered))
            config = listed or self._config
            if model is not None and model not in by_name(config.models):
                config = replace(config, models=(*config.models, ListedModel(name=model)))
            offered = self._user_models.offered(self._row, config, offered)
            name = model or next(iter(offered.model_names), None)
            asked = offered.get(name) if name else None
            shape = await self._try("reply", _ask(asked)) if asked else None
            if asked is not None and shape is not None:
                # Some servers know the window of a loaded model alone.
                if asked.spec.figures_from in {"default", "learned"}:
                    await offered.adapter.learn_windows([asked.spec.name])
                answered = _report_model(offered.get(asked.spec.name) or asked, shape)
        finally:
            await offered.adapter.aclose()
        if asked is None and self._problem is None:
            self._problem = report_problem(
                UnknownModelError("The server lists no models. Enter the name of one.")
            )
        return ProviderTested(
            ok=answered is not None,
            steps=self._steps,
            models=len(offered.listed),
            model=name,
            answered=answered,
            problem=None if answered else self._problem,
        )

    async def _list(self, offered: OfferedProvider) -> tuple[ProviderConfig, str]:
        config = await self._keep(await list_models(offered.adapter))
        return config, f"{len(config.listed)} models"

    async def _try(
        self, step: Literal["models", "reply"], work: Awaitable[tuple[T, str]]
    ) -> T | None:
        """Return the result of a step; None if it failed, and `_problem` says why."""
        begun, result = time.monotonic(), None
        try:
            result, detail = await work
        except AppError as error:
            self._problem = report_problem(error)
            detail = self._problem.detail
        spent = round((time.monotonic() - begun) * 1000)
        is_ok = result is not None
        self._steps.append(TestStep(step=step, ok=is_ok, milliseconds=spent, detail=detail))
        return result


def report_problem(error: AppError) -> TestProblem:
    """Return the view of an error for those who may change the provider."""
    problem = TestProblem.from_error(error, for_administrator=True)
    if isinstance(error, AddressRefusedError):
        problem = replace(problem, address=error.address)
    return problem


def _with_list(config: ProviderConfig, *, found: Sequence[ListedModel]) -> ProviderConfig:
    """Return a config with the list of its server, cut if it is too long."""
    listed = list(found[:MAX_LISTED])
    while len(msgspec.json.encode(listed)) > LISTED_BYTES:
        listed = listed[: len(listed) * 9 // 10]
    return replace(
        config,
        listed=tuple(by_name(listed).values()),
        listed_at=now(),
        is_cut=len(listed) < len(found),
    )


_CONVERSATION = Prompt(
    [
        PromptMessage("system", "You keep an inn. Answer as its keeper."),
        PromptMessage("assistant", "Welcome, traveller."),
        PromptMessage("system", "Be brief."),
        PromptMessage("user", "Say hello in one word."),
    ]
)
"""A greeting comes first and a system message in between, as in chats. So the test meets all
refusals of a strict chat template."""


async def _ask(model: ChatModel) -> tuple[MessageShape, str]:
    """Have a model begin a reply, and return the shape that was sent.

    Raises `ModelError` if it does not begin.
    """
    shape = model.spec.shape
    try:
        async with (
            asyncio.timeout(SECONDS),
            aclosing(model.stream(_CONVERSATION, Sampling())) as pieces,
        ):
            async for piece in pieces:
                if isinstance(piece, SentRequest):
                    shape = piece.shape
                elif isinstance(piece, TextPiece | ThinkingPiece):
                    break
            else:
                raise ModelEmptyReplyError
    except TimeoutError:
        raise ModelTimeoutError(f"The model sent nothing for {SECONDS:g} s.") from None
    return shape, "It answers."


def _report_model(model: ChatModel, shape: MessageShape) -> TestedModel:
    spec = model.spec
    return TestedModel(
        name=spec.name,
        shape=shape,
        context_window=spec.context_window,
        figures_from=spec.figures_from,
    )
