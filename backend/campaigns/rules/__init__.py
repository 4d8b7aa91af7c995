"""Rules modules: what a game adds to a campaign. Each is one file of this package.

A module here that has a `RULES` is found by its file's name; nothing else names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from backend.campaigns.items import Entity, Kind
from backend.campaigns.ledger import State
from backend.errors import ValidationError

DEFAULT = "freeform"


class Rules(Protocol):
    """A game's rules."""

    def schema(self, kind: Kind) -> dict[str, Any]:
        """JSON schema of the `attributes` that items of a kind have under these rules."""
        ...

    def validate(self, before: State, after: State) -> None:
        """Raise `ValidationError` where an entity may not become `after`."""
        ...

    def precarity(self, players: Sequence[Entity]) -> dict[str, Any] | None:
        """How close the players' characters are to ruin; None where the game has no such thing."""
        ...


@cache
def known_rules() -> dict[str, Rules]:
    """All rules modules, by name."""
    found: dict[str, Rules] = {}
    for module in iter_modules(__path__):
        rules = getattr(import_module(f"{__name__}.{module.name}"), "RULES", None)
        if rules is not None:
            found[module.name] = rules
    return found


def check_rules(name: str) -> None:
    """Raise `ValidationError` where there is no such rules module."""
    if name not in known_rules():
        raise ValidationError(
            f"There are no rules named {name}; there are {', '.join(sorted(known_rules()))}."
        )


def rules_of(name: str) -> Rules:
    """The rules of a campaign; those of a module that is gone are `freeform`."""
    return known_rules().get(name, known_rules()[DEFAULT])
