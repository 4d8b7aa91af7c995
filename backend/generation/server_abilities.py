"""What is learned of a server from its answers, so that it is not asked again in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from backend.generation.model import ToolSupport
from backend.generation.sampling import SamplingField

JsonWay = Literal["json_schema", "json_object", "tool", "fenced"]
"""How a model is asked for a JSON value: by its schema, by JSON mode with the schema beside it, as
the arguments of a tool, or in a fenced block of its text."""

JSON_WAYS: tuple[JsonWay, ...] = get_args(JsonWay)
"""The best first."""


class ModelAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is learned of one model.

    `refused` are settings that it does not take; `without` members of a request that Talekeeper
    adds itself and leaves out from then on; `counts` is the path by which its server counts tokens,
    "" where it does not.
    """

    refused: tuple[SamplingField, ...] = ()
    without: tuple[str, ...] = ()
    json: JsonWay | None = None
    tools: ToolSupport | None = None
    counts: str | None = None


class ServerAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is learned of a server, by the names of its models."""

    models: Mapping[str, ModelAbilities] = msgspec.field(default_factory=dict[str, ModelAbilities])

    def of(self, model: str) -> ModelAbilities:
        """What is known of a model."""
        return self.models.get(model, ModelAbilities())

    def with_model(self, model: str, abilities: ModelAbilities) -> ServerAbilities:
        """The same, with this known of a model."""
        return msgspec.structs.replace(self, models={**self.models, model: abilities})
