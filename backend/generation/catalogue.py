"""Figures of models: context window, output limit, price and abilities."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal, get_args

import msgspec

Ability = Literal["tools", "structured", "thinking", "images"]
FiguresFrom = Literal["user", "learned", "provider", "table", "default"]
"""The source of a model's window, in the order of precedence.

`user` is a setting. `learned` is what the model's server showed when it was asked or refused a
prompt. `provider` is the provider's list, `table` the table of known models. `default` is assumed.
"""

ToolSupport = Literal["native", "structured", "fenced", "none"]
"""A way to call tools: natively, in JSON of a schema, in a fenced block of text, or not at all."""

ImageSupport = Literal["native", "none"]
"""The way to send images: in the request, or not at all."""

MessageShape = Literal["lenient", "system_first", "alternating", "no_system"]
"""The messages that a model's chat template accepts. Each value is stricter than the one before.

`lenient` accepts any order. `system_first` accepts one system message, at the beginning.
`alternating` also requires that user and assistant take turns, the user first. `no_system` accepts
the same without a system message.
"""

MESSAGE_SHAPES: tuple[MessageShape, ...] = get_args(MessageShape)

MIN_WINDOW = 1_024
MAX_WINDOW = 100_000_000

Amount = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

_FILE = ".gguf"
"""Model files of llama.cpp. Its servers name a model by the path of its file."""

_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_SMALL = re.compile(r"gemini.*lite")


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens. `cached_input` is for tokens that are read from the cache."""

    input: Amount
    output: Amount
    cached_input: Amount | None = None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return US dollars. `prompt_tokens` include `cached_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        known = min(cached_tokens, prompt_tokens)
        read = self.input * (prompt_tokens - known) + cached * known
        return (read + self.output * completion_tokens) / 1_000_000


class ListedModel(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The figures of a model from one source. Sizes are in tokens.

    Only users set `tool_support` and `message_shape`. None uses the server's own figures. The
    ability `images` counts as `image_support`.
    """

    name: Name
    title: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    context_window: Annotated[int, msgspec.Meta(ge=MIN_WINDOW, le=MAX_WINDOW)] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW)] | None = None
    price: Price | None = None
    abilities: tuple[Ability, ...] | None = None
    tool_support: ToolSupport | None = None
    message_shape: MessageShape | None = None
    image_support: ImageSupport | None = None

    @property
    def known_image_support(self) -> ImageSupport | None:
        return self.image_support or ("native" if "images" in (self.abilities or ()) else None)


NOTHING = ListedModel(name="-")
"""The figures of a source that does not know the model."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a model, combined from all sources.

    `image_support` is None if no source knows it.
    """

    title: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    abilities: frozenset[Ability]
    image_support: ImageSupport | None
    figures_from: FiguresFrom


def combine_figures(
    name: str,
    *,
    chosen: ListedModel = NOTHING,
    learned_window: int | None = None,
    learned_images: ImageSupport | None = None,
    listed: ListedModel = NOTHING,
    default: ListedModel = NOTHING,
) -> Figures:
    """Take each figure from the first source in `FiguresFrom` that knows it.

    `default` must have a window and an output limit. A learned window precedes the list and the
    table, because those state the model's maximum and the server may be started with less. It
    follows the user's setting, because it may be a guess.
    """
    sources: Mapping[FiguresFrom, ListedModel] = {
        "user": chosen,
        "learned": ListedModel(
            name=name, context_window=learned_window, image_support=learned_images
        ),
        "provider": listed,
        "table": find_known_model(name),
        "default": default,
    }

    def first(figure: str) -> Any:
        found = (getattr(source, figure) for source in sources.values())
        return next((value for value in found if value is not None), None)

    window, images = first("context_window"), first("known_image_support")
    abilities = set[Ability](first("abilities") or ()) - {"images"}
    if images == "native":
        abilities.add("images")
    return Figures(
        title=first("title") or _find_title(name),
        context_window=window,
        max_output_tokens=min(first("max_output_tokens"), window),
        price=first("price"),
        abilities=frozenset(abilities),
        image_support=images,
        figures_from=next(
            place for place, source in sources.items() if source.context_window is not None
        ),
    )


def _find_title(name: str) -> str:
    """Return the name. If it is the path of a file, return the file's name without extension."""
    return PureWindowsPath(name).stem if name.endswith(_FILE) else name


def find_known_model(name: str) -> ListedModel:
    """Return the table's figures, also for a router's name like `google/gemini-2.5-pro:free`."""
    plain = name.rpartition("/")[2].partition(":")[0].lower()
    table = _load_table()
    return table.get(plain) or table.get(_DATE.sub("", plain)) or NOTHING


def is_small_model(name: str) -> bool:
    """True if a model is known to be fast, cheap, and good enough for background tasks."""
    return _SMALL.match(name) is not None


class _Table(msgspec.Struct):
    as_of: str
    sources: Sequence[str]
    models: Sequence[ListedModel]


@cache
def _load_table() -> Mapping[str, ListedModel]:
    data = (resources.files("backend.generation") / "known_models.json").read_bytes()
    return {model.name: model for model in msgspec.json.decode(data, type=_Table).models}
