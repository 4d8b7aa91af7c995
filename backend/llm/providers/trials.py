"""Tests of providers: listing their models, and the beginning of one reply."""

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
    ImageSupport,
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
    index_by_name,
)
from backend.llm.providers.schemas import NewProvider
from backend.llm.providers.service import ProviderService, find_provider
from backend.llm.user_models import UserModels

T = TypeVar("T")

REPLY_SECONDS = 60.0
"""Time for the beginning of a reply. A local program loads the model first."""

MAX_LIST_BYTES = 200_000


class ProviderTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model to test, by default the provider's first one."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class NewProviderTest(NewProvider, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider that is not stored, and the model to test."""

    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class TestStep(msgspec.Struct, kw_only=True):
    """A step of a test, and its result. `detail` is for people."""

    step: Literal["models", "reply"]
    ok: bool
    milliseconds: int
    detail: str = ""


class TestProblem(ShownProblem, kw_only=True, frozen=True):
    """The cause of a failed test. `address` is an address that is refused."""

    address: RefusedAddress | None = None


class TestedModel(msgspec.Struct, kw_only=True):
    """The model that responded to a test, and the facts that are known since.

    `shape` is the message shape of the request that succeeded. Figures as in `GET /models`.
    """

    name: str
    shape: MessageShape
    context_window: int
    figures_from: FiguresFrom


class ProviderTested(msgspec.Struct, kw_only=True):
    """The result of a test. `models` is the number of listed models, `model` the tested one.

    `answered` is the tested model if it responded.
    """

    ok: bool
    steps: list[TestStep]
    models: int
    model: str | None
    answered: TestedModel | None
    problem: TestProblem | None


class ListedModelView(msgspec.Struct, kw_only=True):
    """A model that a provider's server lists, or that its user named.

    `enabled` is true if it is available, as `id`. Figures as in `GET /models`. `tool_support`,
    `message_shape` and `image_support` are the user's values, or else learned ones, or else the
    usual ones.
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
    image_support: ImageSupport | Literal["unknown"]
    enabled: bool


class ProviderListing(msgspec.Struct, kw_only=True):
    """The models that a provider's server listed at `listed_at`.

    `problem` is the reason if it could not be listed now.
    """

    items: list[ListedModelView]
    listed_at: datetime | None
    is_cut: bool
    problem: TestProblem | None


class ProviderTests:
    def __init__(
        self, database: Database, providers: ProviderService, user_models: UserModels
    ) -> None:
        self._database = database
        self._providers = providers
        self._user_models = user_models

    async def listing(
        self, identity: Identity, provider_id: UUID, *, refresh: bool
    ) -> ProviderListing:
        """Return the stored list of a provider's models. `refresh` reloads it first.

        Raises `ProviderNotFoundError`. Errors of the provider are part of the response.
        """
        problem = await self._refresh(identity, provider_id) if refresh else None
        async with self._database.read() as session:
            row = await find_provider(session, identity, provider_id)
        config = self._providers.open(identity, row)
        # Listed as if all were available: an empty choice means all listed models.
        chosen, listed = index_by_name(config.models), index_by_name(config.listed)
        names = {**listed, **chosen}
        shown = replace(config, models=tuple(chosen.get(n) or ListedModel(name=n) for n in names))
        offered = self._user_models.make_provider(row, shown)
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
                    image_support=spec.image_support or "unknown",
                    enabled=spec.name in (chosen or listed),
                )
                for spec in specs
            ],
            listed_at=config.listed_at,
            is_cut=config.is_cut,
            problem=problem,
        )

    async def _refresh(self, identity: Identity, provider_id: UUID) -> TestProblem | None:
        """Load a provider's list, and windows that are not in it, from its server. Store both."""
        async with self._database.read() as session:
            row = await find_provider(session, identity, provider_id)
        offered = self._user_models.make_provider(row, self._providers.open(identity, row))
        try:
            found = await list_models(offered.adapter)
        except ModelError as error:
            return report_problem(error)
        finally:
            await offered.adapter.aclose()
        await self._user_models.settle()
        await self._keep(identity, provider_id, partial(_set_list, found=found))
        return None

    async def test(
        self, identity: Identity, provider_id: UUID, wanted: ProviderTest
    ) -> ProviderTested:
        """List the models, store the list, and test one reply. Raises `ProviderNotFoundError`.

        Everything learned from its server before is deleted, because the server may be another
        version by now. The response reports errors of the provider.
        """
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            row.abilities, row.updated_at = None, now()
        config = self._providers.open(identity, row)

        async def keep(found: Sequence[ListedModel]) -> ProviderConfig:
            return await self._keep(identity, provider_id, partial(_set_list, found=found))

        tested = await _ProviderTest(self._user_models, row, config, keep).run(wanted.model)
        # Registries that were opened during the test do not know its results.
        await self._user_models.settle()
        is_marked = config.failed_test and not tested.ok
        await self._keep(identity, provider_id, partial(replace, failed_test=is_marked))
        return tested

    async def test_new(self, identity: Identity, new: NewProviderTest) -> ProviderTested:
        """Test a provider that is not stored. Stores nothing."""
        row, config = await self._providers.draft(identity, new)

        async def keep(found: Sequence[ListedModel]) -> ProviderConfig:
            return _set_list(config, found=found)

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
        await self._providers.apply_change(identity, row)
        return config


class _ProviderTest:
    """One test of a provider. `keep` stores the server's list, and returns the config with it."""

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
        """Test the model with this name, or else the first available one.

        A named model is tested even if it is not listed, because servers need not list all models.
        """
        answered: TestedModel | None = None
        offered = self._user_models.make_provider(self._row, self._config)
        try:
            listed = await self._try("models", self._list(offered))
            config = listed or self._config
            if model is not None and model not in index_by_name(config.models):
                config = replace(config, models=(*config.models, ListedModel(name=model)))
            offered = self._user_models.make_provider(self._row, config, offered)
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
        """Return the result of a step; None if it failed. `_problem` has the reason."""
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
    """Return the view of an error for users who may change the provider."""
    problem = TestProblem.from_error(error, for_administrator=True)
    if isinstance(error, AddressRefusedError):
        problem = replace(problem, address=error.address)
    return problem


def _set_list(config: ProviderConfig, *, found: Sequence[ListedModel]) -> ProviderConfig:
    listed = list(found[:MAX_LISTED])
    while len(msgspec.json.encode(listed)) > MAX_LIST_BYTES:
        listed = listed[: len(listed) * 9 // 10]
    return replace(
        config,
        listed=tuple(index_by_name(listed).values()),
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
    """Let a model begin a reply, and return the sent message shape. Raises `ModelError`."""
    shape = model.spec.shape
    try:
        async with (
            asyncio.timeout(REPLY_SECONDS),
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
        raise ModelTimeoutError(f"The model sent nothing for {REPLY_SECONDS:g} s.") from None
    return shape, "It answers."


def _report_model(model: ChatModel, shape: MessageShape) -> TestedModel:
    spec = model.spec
    return TestedModel(
        name=spec.name,
        shape=shape,
        context_window=spec.context_window,
        figures_from=spec.figures_from,
    )
