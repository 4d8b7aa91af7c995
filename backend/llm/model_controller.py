"""`GET /models`: what can be asked."""

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency

from backend.accounts.identity import Identity
from backend.generation.registry import ModelRegistry
from backend.wire import Page


class ModelView(msgspec.Struct, kw_only=True):
    """A model on offer, with the settings that it takes."""

    id: str
    title: str
    provider: str
    context_window: int
    max_output_tokens: int
    accepts: list[str]
    is_default: bool


class ModelController(Controller):
    """The models of this installation."""

    path = "/models"
    tags = ("Models",)

    @get(operation_id="listModels", summary="List models")
    async def list_models(
        self, identity: NamedDependency[Identity], registry: NamedDependency[ModelRegistry]
    ) -> Page[ModelView]:
        """What can be asked, in the order in which to offer it; `is_default` is the account's."""
        default = identity.settings.model or registry.default_id
        return Page(
            items=[
                ModelView(
                    id=spec.id,
                    title=spec.title,
                    provider=spec.provider,
                    context_window=spec.context_window,
                    max_output_tokens=spec.max_output_tokens,
                    accepts=sorted(spec.accepts),
                    is_default=spec.id == default,
                )
                for spec in registry.specs()
            ]
        )


CONTROLLERS = (ModelController,)
