"""What is known of a model: its window, its longest reply, its price, what it can do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal, get_args

import msgspec

Ability = Literal["tools", "structured", "thinking"]
FiguresFrom = Literal["user", "learned", "provider", "table", "default"]
"""The source of a model's window, in the order of precedence.

`user` is a setting. `learned` is what the model's server showed when it was asked or refused a
prompt. `provider` is the provider's list, `table` the table of known models. `default` is assumed.
"""

ToolSupport = Literal["native", "structured", "fenced", "none"]
"""A way to call tools: natively, in JSON of a schema, in a fenced block of text, or not at all."""

MessageShape = Literal["lenient", "system_first", "alternating", "no_system"]
"""Which messages a model's chat template accepts, each value stricter than the one before.

`lenient` accepts any order. `system_first` accepts one system message, at the beginning.
`alternating` also wants user and assistant to take turns, the user first. `no_system` accepts the
same without a system message.
"""

MESSAGE_SHAPES: tuple[MessageShape, ...] = get_args(MessageShape)

MIN_WINDOW = 1_024
MAX_WINDOW = 100_000_000

Amount = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

_FILE = ".gguf"
"""What llama.cpp reads. Its servers call a model by the whole path."""

_DATE = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars for a million tokens; `cached_input` is for those read from the cache."""

    input: Amount
    output: Amount
    cached_input: Amount | None = None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """US dollars for that many tokens; those of the prompt include those of the cache."""
        cached = self.input if self.cached_input is None else self.cached_input
        known = min(cached_tokens, prompt_tokens)
        read = self.input * (prompt_tokens - known) + cached * known
        return (read + self.output * completion_tokens) / 1_000_000


class ListedModel(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A model by its name, and what one source tells of it. Windows and replies are in tokens.

    `tool_support` and `message_shape` are set by users alone; None leaves them to what is learned.
    """

    name: Name
    title: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    context_window: Annotated[int, msgspec.Meta(ge=MIN_WINDOW, le=MAX_WINDOW)] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW)] | None = None
    price: Price | None = None
    abilities: tuple[Ability, ...] | None = None
    tool_support: ToolSupport | None = None
    message_shape: MessageShape | None = None


NOTHING = ListedModel(name="-")
"""What a source tells of a model that it does not know."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of a model: of each figure what the first source says that knows it."""

    title: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    abilities: frozenset[Ability]
    figures_from: FiguresFrom


def combine_figures(
    name: str,
    *,
    chosen: ListedModel = NOTHING,
    learned_window: int | None = None,
    listed: ListedModel = NOTHING,
    default: ListedModel = NOTHING,
) -> Figures:
    """Take each figure of a model from the first source in `FiguresFrom` that knows it.

    `default` has a window and a longest reply. A learned window comes before the list and the
    table, because both tell what a model can have, and the server what it has. It comes after the
    user's setting, because it can be a guess.
    """
    sources: Mapping[FiguresFrom, ListedModel] = {
        "user": chosen,
        "learned": ListedModel(name=name, context_window=learned_window),
        "provider": listed,
        "table": find_known_model(name),
        "default": default,
    }

    def first(figure: str) -> Any:
        found = (getattr(source, figure) for source in sources.values())
        return next((value for value in found if value is not None), None)

    window = first("context_window")
    return Figures(
        title=first("title") or _title(name),
        context_window=window,
        max_output_tokens=min(first("max_output_tokens"), window),
        price=first("price"),
        abilities=frozenset(first("abilities") or ()),
        figures_from=next(
            place for place, source in sources.items() if source.context_window is not None
        ),
    )


def _title(name: str) -> str:
    """A model's name; of one that its server calls by its file, the file's without the folders."""
    return PureWindowsPath(name).stem if name.endswith(_FILE) else name


def find_known_model(name: str) -> ListedModel:
    """What the table tells of a model, whoever serves it: `google/gemini-2.5-pro:free`, too."""
    plain = name.rpartition("/")[2].partition(":")[0].lower()
    table = _table()
    return table.get(plain) or table.get(_DATE.sub("", plain)) or NOTHING


class _Table(msgspec.Struct):
    as_of: str
    sources: Sequence[str]
    models: Sequence[ListedModel]


@cache
def _table() -> Mapping[str, ListedModel]:
    data = (resources.files("backend.generation") / "known_models.json").read_bytes()
    return {model.name: model for model in msgspec.json.decode(data, type=_Table).models}
