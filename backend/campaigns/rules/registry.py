"""The rule systems that are available.

A module of this package that has a `RULES` is found by its file name; nothing else names it. An
installed package adds systems with entry points of the group `talekeeper.rules`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from backend.campaigns import rules as package
from backend.campaigns.rules.protocol import RuleSystem
from backend.core.cpu_pool import resolve_structs
from backend.core.logs import get_logger
from backend.errors import ValidationError

log = get_logger(__name__)

DEFAULT_RULES = "freeform"
ENTRY_POINTS = "talekeeper.rules"


@cache
def load_rules() -> dict[str, RuleSystem[Any]]:
    found: dict[str, RuleSystem[Any]] = {
        point.name: point.load() for point in entry_points(group=ENTRY_POINTS)
    }
    for module in iter_modules(package.__path__):
        rules = getattr(import_module(f"{package.__name__}.{module.name}"), "RULES", None)
        if rules is not None:
            found[module.name] = rules
    resolve_structs()
    return found


def check_rules(name: str) -> None:
    """Raise `ValidationError` if there is no such rule system."""
    if name not in load_rules():
        raise ValidationError(
            f"Unknown rules: {name}. Available are {', '.join(sorted(load_rules()))}."
        )


def find_rules(name: str) -> RuleSystem[Any]:
    """Return the rules of a campaign; `freeform` if their package was uninstalled."""
    found = load_rules().get(name)
    if found is None:
        _warn_of_missing(name)
        return load_rules()[DEFAULT_RULES]
    return found


@cache
def _warn_of_missing(name: str) -> None:
    """Log once per process that a rule system of a campaign is missing."""
    log.warning("campaign.rules_missing", source=name)
