"""The state of a played turn, also while the turn waits for its player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import msgspec

from backend.campaigns.play.table import Table
from backend.generation.catalogue import ToolSupport
from backend.generation.model import TokenUsage, ToolCall, ToolRound
from backend.prompts import PromptLibrary
from backend.turns.api.schemas import ChoiceRequest
from backend.turns.prompt.built_prompt import BuiltPrompt
from backend.turns.run.events import PlayEvent


class SuspendedPlay(msgspec.Struct, kw_only=True):
    """What a turn that waits goes on with. `rounds` lack the result that the choice will be."""

    table: bytes
    rounds: list[ToolRound]
    used: list[str]
    viewpoint: str | None
    earlier: TokenUsage | None


@dataclass(slots=True, kw_only=True)
class TurnPlay:
    """The progress of a played turn.

    Attributes:
        table: The items that its tools see and change.
        rounds: Calls of this phase that were answered.
        used: Names of the tools that were called, in order.
        viewpoint: As it was asked for: whose knowledge the prompt may hold.
        support: How the model was asked for calls last.
        earlier: What the model took before the turn was suspended.
        requests: How often the model was asked since then.
        may_wait: False if the turn can't be suspended, because it goes on with a reply.
        told_from: The place in the transcript of the player's last choice. The narration has to
            come after it.
        nudges: The number of requests to narrate first.
        held: The call of `finish_turn` that came before the narration.
        closing: What is told once the reply is stored.
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
        """Whether it is the player's move."""
        return self.table.waiting is not None

    def guide(self, built: BuiltPrompt) -> BuiltPrompt:
        """Return a prompt with the guidance of the mood that the turn is in."""
        return built.with_guidance(self.table.guidance(self.prompts))

    def choose(self, choice: ChoiceRequest) -> None:
        """Answer the call that waits with the player's choice. Raises `ValidationError`."""
        last = self.rounds[-1]
        chosen = self.table.choose(choice.option, choice.text)
        self.rounds[-1] = ToolRound(last.calls, [*last.results, chosen], last.text)

    def suspended(self, usage: TokenUsage | None) -> bytes:
        """What is stored while the turn waits; `usage` is what was taken since it went on."""
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
    """What two requests took together; None where neither was reported."""
    if one is None or other is None:
        return one or other
    return TokenUsage(
        **{each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)}
    )
