"""What a tool of a mood is, and what using one comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from backend.core.audience import PUBLIC, Audience
from backend.generation.model import Tool
from backend.generation.tools.arguments import tool_of

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table

OutcomeKind = Literal["answer", "break", "wait", "end"]
Event = tuple[str, dict[str, Any]]


class Happened(msgspec.Struct, frozen=True):
    """Something for the campaign's chronicle."""

    text: str
    audience: Audience = PUBLIC


class ToolRefusedError(Exception):
    """A call that can't be: its text says why, so that the model can do better. Nothing changed."""


class Option(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a player may choose. `detail` says what it would mean.

    `id` is `<number of the wait>.<index>`, so that no choice can be taken for that of a later wait.
    `die` is the die that is spent with it, 0 where none is.
    """

    id: str
    label: str
    detail: str = ""
    die: int = 0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The question that a turn waits with: for an answer of the player's, or a die.

    `own` is the id of an answer in the player's own words; empty if none is possible.
    """

    kind: Literal["question", "die"]
    prompt: str
    options: list[Option]
    own: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call comes to.

    `answer`: the model goes on with `result`. `break`: what it said is dropped, and the turn goes
    on in another mood. `wait`: the turn is suspended for `Table.waiting`. `end`: it is over.
    `summary` says in a few words what was done. `events` go out on the turn's stream.
    """

    kind: OutcomeKind
    result: Any = None
    summary: str = ""
    events: list[Event] = field(default_factory=list[Event])


def answer(result: Any, summary: str = "") -> Outcome:
    """The model goes on."""
    return Outcome(kind="answer", result=result, summary=summary)


def refusal(why: str) -> Outcome:
    """What is wrong with a call, for the model to do better."""
    return Outcome(kind="answer", result={"error": why})


@dataclass(frozen=True)
class PlayTool:
    """A tool of a mood.

    Args:
        name: What the model calls.
        arguments: What it gives; the struct's docstring is the tool's description.
        run: Does it; raises `ToolRefusedError`, or a `ValidationError`, and then changes nothing.
        choose: For a tool that waits: what the player's choice, by its index, comes to.
        is_private: True if a turn that is not for everyone has it, because it changes no item.
    """

    name: str
    arguments: type[msgspec.Struct]
    run: Callable[[Table, Any], Outcome]
    choose: Callable[[Table, int], Any] | None = None
    is_private: bool = False

    @cached_property
    def offer(self) -> Tool:
        """The tool as a model is offered it."""
        return tool_of(self.name, self.arguments)

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments."""
        return self.offer.parameters
