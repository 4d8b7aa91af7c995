"""What is learned of a server from its answers, so that it is not asked again in vain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

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


MAX_CONCURRENCY = 100
"""Requests that a server can be known, or set, to answer at the same time."""


@dataclass(frozen=True, slots=True)
class ServerLimit:
    """The limit of one server.

    Attributes:
        concurrency: Requests at the same time, at least 1.
        server: Its address and everything that identifies the client to it. Providers with equal
            values share the limit, also those of different users. Contains secrets.
        refresh: Asks the server for its limit, unless that was done recently. Never raises.
    """

    concurrency: int
    server: tuple[str, ...] = field(repr=False)
    refresh: Callable[[], Coroutine[Any, Any, None]] | None = field(
        default=None, compare=False, repr=False
    )


def identify_server(
    base_url: str | None, api_key: str | None, extra_headers: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the scheme, host and port of a server, the key, and the headers."""
    parts = urlsplit((base_url or "").lower())
    headers = (f"{name.lower()}: {extra_headers[name]}" for name in sorted(extra_headers))
    return (f"{parts.scheme}://{parts.netloc}", api_key or "", *headers)


def count_slots(answer: Any) -> int | None:
    """Count the slots in an answer of llama.cpp's `/slots`; None if it is something else."""
    if not isinstance(answer, list) or not answer:
        return None
    return min(len(answer), MAX_CONCURRENCY)  # pyright: ignore[reportUnknownArgumentType]
