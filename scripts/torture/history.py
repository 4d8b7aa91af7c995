"""A record of requests and their answers, one line of JSON each."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Outcome = Literal["ok", "refused", "unknown"]
"""`ok`: acknowledged. `refused`: it did not happen. `unknown`: it may have happened, once."""


@dataclass
class Invocation:
    """Something that a client asked for. Times are seconds since the campaign began."""

    number: int
    client: str
    name: str
    arguments: dict[str, Any]
    began: float
    ended: float = 0.0
    outcome: Outcome = "unknown"
    status: int | None = None


@dataclass
class History:
    """The invocations of a campaign, each written to a file when it ends.

    `broken` are promises that did not hold, each told once.
    """

    file: Path
    outcomes: Counter[tuple[str, Outcome]] = field(default_factory=Counter[tuple[str, Outcome]])
    broken: list[str] = field(default_factory=list[str])
    count: int = 0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._output = self.file.open("w")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._output.close()

    @property
    def clock(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self._began

    @contextmanager
    def invocation(self, client: str, name: str, **arguments: Any) -> Generator[Invocation]:
        """Record one invocation with the outcome that the block sets."""
        self.count += 1
        made = Invocation(self.count, client, name, arguments, self.clock)
        try:
            yield made
        finally:
            made.ended = self.clock
            self.outcomes[name, made.outcome] += 1
            self._output.write(json.dumps(vars(made), default=str) + "\n")

    def breach(self, what: str) -> None:
        """Record a broken promise."""
        if what not in self.broken:
            self.broken.append(what)
            self._output.write(json.dumps({"broken": what, "at": self.clock}) + "\n")
            self._output.flush()

    def count_acknowledged(self, *names: str) -> int:
        """Return the number of acknowledged invocations with the names, or of all."""
        return sum(
            count
            for (name, outcome), count in self.outcomes.items()
            if outcome == "ok" and (not names or name in names)
        )
