"""Downtime: the player's own call, between what happens. Models can neither begin nor end it."""

from __future__ import annotations

from typing import Any

from backend.campaigns.play.table import Table
from backend.errors import ConflictError, ValidationError

DOWNTIME = "downtime"


class DowntimeError(ConflictError):
    """Downtime is already running, or is not running."""

    slug, title = "downtime", "Downtime not possible now"


def enter_downtime(table: Table, activity: str, target: str = "") -> dict[str, Any]:
    """Begin downtime with one of its activities, and give what that came to.

    The changes are in the table's ledger, its dice included. `target` names whom or what the
    activity is about, where the rules ask for it: a character, or a project's clock.

    Raises:
        DowntimeError: It has begun, or the turn before it is not over.
        ValidationError: The rules have no downtime, or no such activity or target.
    """
    mood = table.rules.moods().get(DOWNTIME)
    if mood is None:
        raise ValidationError("These rules have no downtime.")
    if activity not in mood.variants:
        raise ValidationError(f"`activity` must be one of {', '.join(mood.variants)}.")
    if table.play.mood == DOWNTIME:
        raise DowntimeError("Downtime has already started.")
    if table.play.mood != next(iter(table.rules.moods())):
        raise DowntimeError("An action is in progress. Start downtime when it is over.")
    result = table.rules.spend_downtime(table, activity, target)
    table.turn_to(DOWNTIME, variant=activity)
    return result


def leave_downtime(table: Table) -> None:
    """Go back to the mood that play begins in. Raises `DowntimeError` where it is not downtime."""
    if table.play.mood != DOWNTIME:
        raise DowntimeError("Start downtime first.")
    table.turn_to(next(iter(table.rules.moods())))
