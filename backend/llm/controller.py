"""`GET /models` lists models; `POST /tokens` counts the tokens of texts."""

from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.generation.catalogue import Ability, FiguresFrom, Price, ToolSupport
from backend.generation.registry import UnknownModelError
from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.generation.tools.streams import choose_tool_support
from backend.http.schemas import ENDS_WITH_CLIENT, EXAMPLE, PREVIEWS, RAISES, Page
from backend.llm.token_ratios import load_ratio
from backend.llm.user_models import UserModels, choose_task_model
from backend.settings import Settings

MAX_TEXTS = 100
MAX_CHARACTERS = 200_000
"""The maximum length of a field of a card or of the settings."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""About one second of work for the slowest vocabulary."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_CHARACTERS)]


class CountTokens(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to count, and the model; by default the account's model."""

    texts: Annotated[list[Text], msgspec.Meta(max_length=MAX_TEXTS)]
    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class TokenCounts(msgspec.Struct, kw_only=True):
    """Tokens of each text, in the order of the texts.

    `tokenizer` is the vocabulary that counted them. If it is not the model's own, the counts are
    scaled by the known ratio of the model.
    """

    counts: list[int]
    tokenizer: str


class ModelView(msgspec.Struct, kw_only=True):
    """An available model, its settings, and how it calls tools.

    `provider` is its provider's slug. `refused` are settings that its server has rejected. They are
    left out of requests. `excludes` names settings that may be left out while another one is set.
    `figures_from` is the source of its window: the user, the server's responses (`learned`), the
    provider's list, Talekeeper's own table, or an assumption (`default`). `task_model` is the id of
    the model for background tasks of its chats if none is chosen for them.
    """

    id: str
    title: str
    provider: str
    provider_name: str
    context_window: int
    max_output_tokens: int
    figures_from: FiguresFrom
    price: Price | None
    abilities: list[Ability]
    accepts: list[str]
    refused: list[str]
    excludes: dict[str, list[str]]
    tool_support: ToolSupport
    is_default: bool
    task_model: str


class ModelController(Controller):
    """The models that the account can use."""

    path = "/models"
    tags = ("Models",)

    @get(summary="List models")
    async def list_models(
        self,
        identity: NamedDependency[Identity],
        database: NamedDependency[Database],
        user_models: NamedDependency[UserModels],
        settings: NamedDependency[Settings],
    ) -> Page[ModelView]:
        """The available models in their usual order. `is_default` marks the account's model."""
        async with database.read() as session:
            models = await user_models.of(session, identity.user, identity.sealer)
        default = identity.settings.model or models.default_id
        return Page(
            items=[
                ModelView(
                    id=spec.id,
                    title=spec.title,
                    provider=spec.provider,
                    provider_name=spec.provider_name,
                    context_window=spec.context_window,
                    max_output_tokens=spec.max_output_tokens,
                    figures_from=spec.figures_from,
                    price=spec.price,
                    abilities=sorted(spec.abilities),
                    accepts=sorted(spec.accepts),
                    refused=sorted(spec.refused),
                    excludes={name: list(others) for name, others in spec.excludes.items()},
                    tool_support=choose_tool_support(models.get(spec.id)),
                    is_default=spec.id == default,
                    task_model=choose_task_model(models, settings, spec.id),
                )
                for spec in models.specs()
            ]
        )


class TokenController(Controller):
    """Counting tokens."""

    path = "/tokens"
    tags = ("Models",)
    request_max_body_size = MAX_BODY_BYTES

    @post(
        status_code=200,
        opt={
            NEEDS: "read",
            PREVIEWS: True,
            ENDS_WITH_CLIENT: True,
            RAISES: (UnknownModelError,),
            EXAMPLE: {"texts": ["The door creaks open.", ""]},
        },
        summary="Count tokens",
    )
    async def count_tokens(
        self,
        data: JSONBody[CountTokens],
        identity: NamedDependency[Identity],
        database: NamedDependency[Database],
        user_models: NamedDependency[UserModels],
        cpu_pool: NamedDependency[CpuPool],
    ) -> TokenCounts:
        """Count the tokens of texts for a model. Nothing is sent anywhere or stored."""
        async with database.read() as session:
            models = await user_models.of(session, identity.user, identity.sealer)
            spec = models.spec(data.model or identity.settings.model or models.default_id)
            name = choose_tokenizer(spec.tokenizer)
            ratio = await load_ratio(session, identity.user_id, spec, name)
        counted = await cpu_pool.run(
            identity.user_id,
            lambda: get_tokenizer(name).count_many(data.texts),
            size=sum(map(len, data.texts)),
        )
        return TokenCounts(counts=[round(count * ratio) for count in counted], tokenizer=name)
