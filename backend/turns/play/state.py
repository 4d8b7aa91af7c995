"""The state of a played turn, also while the turn waits for its player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import msgspec

from backend.campaigns.play.guidance import render_guidance
from backend.campaigns.play.table import Table
from backend.generation.catalogue import ToolSupport
from backend.generation.model import TokenUsage, ToolCall, ToolRound
from backend.prompts import PromptLibrary
from backend.turns.api.schemas import ChoiceRequest
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.run.events import PlayEvent


class SuspendedPlay(msgspec.Struct, kw_only=True):
    """The stored state of a waiting turn. The last round lacks the result of the choice."""

    table: bytes
    rounds: list[ToolRound]
    used: list[str]
    viewpoint: str | None
    earlier: TokenUsage | None


@dataclass(slots=True, kw_only=True)
class TurnPlay:
    """The state of a played turn.

    Attributes:
        table: The items that its tools read and change.
        rounds: The answered calls of this phase.
        used: The names of called tools, in order.
        viewpoint: The requested viewpoint.
        support: The way in which the model was last asked for calls.
        earlier: The tokens that were used before the turn was suspended.
        requests: The number of requests to the model since then.
        may_wait: False if the turn cannot be suspended, because it continues a reply.
        told_from: The place of the player's last choice in the transcript. The narration has to
            come after it.
        nudges: The number of requests to narrate first.
        held: A call of `finish_turn` that came before the narration.
        closing: The events that follow once the reply is stored.
    """

    table: Table
    prompts: PromptLibrary = field(repr=False)
    rounds: list[ToolRound] = field(default_factory=list[ToolRound], repr=False)
    used: list[str] = field(default_factory=list[str])
    viewpoint: str | None = None
    support: ToolSupport = "native"
    earlier: TokenUsage | None = None
    requests: int = 0
    may_wait: bool = True
    told_from: int = 0
    nudges: int = 0
    held: ToolCall | None = field(default=None, repr=False)
    closing: Sequence[PlayEvent] = ()

    @property
    def is_waiting(self) -> bool:
        return self.table.waiting is not None

    def guide(self, built: BuiltPrompt) -> BuiltPrompt:
        return built.with_guidance(render_guidance(self.table, self.prompts))

    def choose(self, choice: ChoiceRequest) -> None:
        """Answer the waiting call with the player's choice. Raises `ValidationError`."""
        last = self.rounds[-1]
        chosen = self.table.choose(choice.option, choice.text)
        self.rounds[-1] = ToolRound(last.calls, [*last.results, chosen], last.text)

    def encode(self, usage: TokenUsage | None) -> bytes:
        """Return the state of a waiting turn. `usage` are tokens since the last wait."""
        return msgspec.json.encode(
            SuspendedPlay(
                table=self.table.save(),
                rounds=self.rounds,
                used=self.used,
                viewpoint=self.viewpoint,
                earlier=add_usage(self.earlier, usage),
            )
        )


def add_usage(one: TokenUsage | None, other: TokenUsage | None) -> TokenUsage | None:
    """Return the sum of two usages. None if neither was reported."""
    if one is None or other is None:
        return one or other
    return TokenUsage(
        **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)}
    )
