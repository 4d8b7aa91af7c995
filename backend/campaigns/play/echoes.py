"""Clocks that tick, and echoes: the costs and threats that a story goes on hearing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast
from uuid import UUID

from backend.campaigns.ledger.changes import Operations, State
from backend.campaigns.ledger.items import Echo
from backend.campaigns.ledger.store import audience_of
from backend.campaigns.play.references import called
from backend.campaigns.play.tools import Happened, ToolRefusedError
from backend.core.audience import PUBLIC, Audience, decode_audience

if TYPE_CHECKING:
    from backend.campaigns.play.table import Table

MOST_COSTS = 3
MOST_THREATS = 5
MAX_ECHO = 1_000
MAX_LISTED = 100

EchoKind = Literal["cost", "threat"]


def echoes(table: Table, kind: EchoKind) -> list[tuple[UUID, str]]:
    """Unresolved echoes of a kind, each with its id, the newest last."""
    return [
        (item_id, state["text"])
        for item_id, state in table.of_kind("echo").items()
        if state.get("kind", "cost") == kind and not state.get("resolved")
    ]


def add_echo(table: Table, kind: EchoKind, text: str, audience: Audience = PUBLIC) -> None:
    """Let a cost or a threat echo; what goes beyond their number is resolved, the oldest first."""
    table.create(Echo(text=text[:MAX_ECHO], kind=kind, audience=audience))
    most = MOST_COSTS if kind == "cost" else MOST_THREATS
    for item_id, _ in echoes(table, kind)[:-most]:
        if "resolved" not in table.get(item_id).get("locked", ()):
            table.change(item_id, Operations(set={"resolved": True}))


def find_echo(table: Table, said: str) -> UUID:
    """Return the unresolved cost or threat of a text, or of a part of it that no other has.

    Raises:
        ToolRefusedError: There is none, or more than one. The text lists them.
    """
    found = {one: text for kind in ("cost", "threat") for one, text in echoes(table, kind)}
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
    """Whether all segments of a clock are filled: it is done."""
    return cast("int", clock.get("filled", 0)) >= cast("int", clock.get("segments", 6))


def is_visible(clock: State) -> bool:
    """Return True if the players may know of a clock."""
    return clock.get("visible") is not False


def tick(table: Table, clock_id: UUID, segments: int) -> State:
    """Fill segments of a clock, or empty some. One that is full becomes an event and an echo.

    Those who may know the clock may know both: of a hidden one, the game master alone.

    Raises `ToolRefusedError` for a clock that is done.
    """
    before = table.get(clock_id)
    if is_full(before):
        raise ToolRefusedError(f"{called(before)} is done, and does not tick any more.")
    filled = before.get("filled", 0)
    moved = max(0, min(before.get("segments", 6), filled + segments)) - filled
    if moved == 0:
        return before
    operations = (
        Operations(add={"filled": moved}) if moved > 0 else Operations(remove={"filled": -moved})
    )
    after = table.change(clock_id, operations)
    if is_full(after):
        what = called(after)
        text = f"{what}: {consequence}" if (consequence := after.get("consequence")) else what
        audience = decode_audience(audience_of(after))
        table.state.happened.append(Happened(text, audience))
        kind: EchoKind = "threat" if after.get("kind", "threat") == "threat" else "cost"
        add_echo(table, kind, text, audience)
    return after
