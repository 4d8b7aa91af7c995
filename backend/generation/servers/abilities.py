"""Abilities of servers and models that their answers have shown, and limits on requests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from backend.generation.catalogue import ImageSupport, MessageShape, ToolSupport
from backend.generation.sampling import SamplingField

JsonWay = Literal["json_schema", "json_object", "tool", "fenced"]
"""A way to request a JSON value: by its schema, by JSON mode with the schema in the prompt, as
arguments of a tool, or in a fenced block of the text."""

JSON_WAYS: tuple[JsonWay, ...] = get_args(JsonWay)
"""All ways, the best first."""


class ModelAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """Abilities that the answers about one model have shown.

    Attributes:
        refused: Sampling settings that the model refuses.
        without: Members of requests that Talekeeper adds and the server refuses.
        json: The way to request a JSON value.
        tools: The way to request tool calls; `none` if no way works.
        calls_tools: It has called a tool in this way.
        counts: The path at which its server counts tokens; "" if it has none.
        shape: The message shape that its chat template accepts.
        window: Its context window in tokens, from a refusal or a usage report.
        images: The way to send images, from a refusal or an answer of its server.
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
    images: ImageSupport | None = None
    thinks_first: bool = False


NOTHING_LEARNED = ModelAbilities()


class ServerAbilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """The slots of a server, and the abilities of its models by name."""

    slots: int | None = None
    models: Mapping[str, ModelAbilities] = msgspec.field(default_factory=dict[str, ModelAbilities])

    def find(self, model: str) -> ModelAbilities:
        return self.models.get(model, NOTHING_LEARNED)

    def with_model(self, model: str, abilities: ModelAbilities) -> ServerAbilities:
        return msgspec.structs.replace(self, models={**self.models, model: abilities})


MAX_CONCURRENCY = 100
"""Maximum number of concurrent requests that can be set or learned."""


@dataclass(frozen=True, slots=True)
class ServerLimit:
    """The limit of one server on concurrent requests.

    Attributes:
        concurrency: At least 1.
        server: The address, key and headers. Providers with equal values share the limit, even
            those of different users. Contains secrets.
        refresh: Asks the server for its limit, unless it was asked recently. Never raises.
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
    """Count the slots in an answer of llama.cpp's `/slots`; None for other answers."""
    if not isinstance(answer, list) or not answer:
        return None
    return min(len(answer), MAX_CONCURRENCY)  # pyright: ignore[reportUnknownArgumentType]
