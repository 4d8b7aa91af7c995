"""What is learned of a server from its answers, so that it is not asked again in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from backend.generation.catalogue import MessageShape, ToolSupport
from backend.generation.sampling import SamplingField

JsonWay = Literal["json_schema", "json_object", "tool", "fenced"]
"""How a model is asked for a JSON value: by its schema, by JSON mode with the schema beside it, as
the arguments of a tool, or in a fenced block of its text."""

JSON_WAYS: tuple[JsonWay, ...] = get_args(JsonWay)
"""The best first."""


class ModelAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """Abilities that the answers of one model's server have shown.

    Attributes:
        refused: Sampling settings that the model does not take.
        without: Members of a request that Talekeeper adds itself and now leaves out.
        json: How the model is asked for a JSON value.
        tools: How the model is asked for tool calls; `none` if it wrote no call in any way.
        calls_tools: It has called a tool when it was asked in this way.
        counts: The path at which its server counts tokens, "" if it does not count.
        shape: The message shape that its chat template accepts.
        window: Its context window in tokens, if a refusal or a usage report has shown it.
        thinks_first: Its replies begin with thoughts that only a closing tag ends.
    """

    refused: tuple[SamplingField, ...] = ()
    without: tuple[str, ...] = ()
    json: JsonWay | None = None
    tools: ToolSupport | None = None
    calls_tools: bool = False
    counts: str | None = None
    shape: MessageShape | None = None
    window: int | None = None
    thinks_first: bool = False


NOTHING_LEARNED = ModelAbilities()


class ServerAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """Abilities that a server has shown: its number of slots, and those of its models by name."""

    slots: int | None = None
    models: Mapping[str, ModelAbilities] = msgspec.field(default_factory=dict[str, ModelAbilities])

    def of(self, model: str) -> ModelAbilities:
        """What is known of a model."""
        return self.models.get(model, NOTHING_LEARNED)

    def with_model(self, model: str, abilities: ModelAbilities) -> ServerAbilities:
        """The same, with this known of a model."""
        return msgspec.structs.replace(self, models={**self.models, model: abilities})
