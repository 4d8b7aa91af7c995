"""Clocks, and echoes: the unresolved costs and threats of a story."""

from __future__ import annotations

from typing import Literal, cast
from uuid import UUID

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Echo
from backend.campaigns.ledger.store import get_audience
from backend.campaigns.play.references import get_name
from backend.campaigns.play.table import Table
from backend.campaigns.rules.protocol import ToolRefusedError
from backend.campaigns.rules.state import Happened
from backend.core.audience import PUBLIC, Audience, decode_audience

MAX_COSTS = 3
MAX_THREATS = 5
MAX_ECHO = 1_000
MAX_LISTED = 100

EchoKind = Literal["cost", "threat"]


def list_echoes(table: Table, kind: EchoKind) -> list[tuple[UUID, str]]:
    """Return unresolved echoes of a kind with their ids, the newest last."""
    return [
        (item_id, state["text"])
        for item_id, state in table.list_items("echo").items()
        if state.get("kind", "cost") == kind and not state.get("resolved")
    ]


def add_echo(table: Table, kind: EchoKind, text: str, audience: Audience = PUBLIC) -> None:
    """Add a cost or a threat. If there are too many, resolve the oldest."""
    table.create(Echo(text=text[:MAX_ECHO], kind=kind, audience=audience))
    most = MAX_COSTS if kind == "cost" else MAX_THREATS
    for item_id, _ in list_echoes(table, kind)[:-most]:
        if "resolved" not in table.get(item_id).get("locked", ()):
            table.change(item_id, Operations(set={"resolved": True}))


def find_echo(table: Table, said: str) -> UUID:
    """Return the unresolved cost or threat with a text, or the only one that contains it.

    Raises:
        ToolRefusedError: There is none, or more than one. The text lists them.
    """
    found = {one: text for kind in ("cost", "threat") for one, text in list_echoes(table, kind)}
    wanted = said.strip().rstrip("…").casefold()
    exact = [one for one, text in found.items() if text.casefold() == wanted]
    near = exact or [one for one, text in found.items() if wanted and wanted in text.casefold()]
    if len(near) == 1:
        return near[0]
    problem = "More than one threat or cost has" if near else "No threat or cost has"
    known = (table.mark(text[:MAX_LISTED], table.get(one)) for one, text in found.items())
    listed = "; ".join(known) or "none"
    raise ToolRefusedError(f"{problem} the text {said[:MAX_LISTED]!r}. There is: {listed}.")


def is_full(clock: State) -> bool:
    """True if all segments of a clock are filled, so that it is done."""
    return cast("int", clock.get("filled", 0)) >= cast("int", clock.get("segments", 6))


def is_visible(clock: State) -> bool:
    """True if the players may know of a clock."""
    return clock.get("visible") is not False


def tick(table: Table, clock_id: UUID, segments: int) -> State:
    """Fill or empty segments of a clock. A full clock becomes an event and an echo.

    Both have the clock's audience; those of a hidden clock are for the game master.

    Raises `ToolRefusedError` for a clock that is done.
    """
    before = table.get(clock_id)
    if is_full(before):
        raise ToolRefusedError(f"{get_name(before)} is done, and does not tick any more.")
    filled = before.get("filled", 0)
    moved = max(0, min(before.get("segments", 6), filled + segments)) - filled
    if moved == 0:
        return before
    operations = (
        Operations(add={"filled": moved}) if moved > 0 else Operations(remove={"filled": -moved})
    )
    after = table.change(clock_id, operations)
    if is_full(after):
        what = get_name(after)
        text = f"{what}: {consequence}" if (consequence := after.get("consequence")) else what
        audience = decode_audience(get_audience(after))
        table.state.happened.append(Happened(text, audience))
        kind: EchoKind = "threat" if after.get("kind", "threat") == "threat" else "cost"
        add_echo(table, kind, text, audience)
    return after
