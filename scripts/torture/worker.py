"""A worker of an account: texts and names used once, and things that are made and deleted."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.torture.client import Answer, Client
from scripts.torture.history import Outcome
from scripts.torture.ledger import Ledger, Thing, ThingKind
from scripts.torture.model import WORDS, TaggedModel

MOST_CHATS = 6
MOST_THINGS = 12
"""Chats, and things of each other kind, that an account keeps: beyond it one is deleted."""

Action = Callable[[], Awaitable[None]]
After = Callable[[Thing, Answer], Awaitable[None]]
"""Is called once something was made."""


@dataclass
class Worker:
    """The common parts of a worker's actions.

    `servers` are the addresses of the account's own model servers; `others` what other accounts
    have.
    """

    name: str
    client: Client
    ledger: Ledger
    model: TaggedModel
    draw: random.Random
    servers: Sequence[str] = ()
    others: Sequence[Ledger] = ()
    pending: list[Action] = field(default_factory=list[Action])

    def text(self) -> str:
        """A line that was never sent before."""
        words = " ".join(self.draw.choices(WORDS, k=self.draw.randint(3, 30)))
        text = f"[L{next(self.ledger.numbers):07d}] {self.model.canary} {words}."
        self.ledger.sent.add(text)
        return text

    def unique(self, kind: ThingKind) -> str:
        """A name that nothing had before."""
        return f"{kind} {next(self.ledger.numbers)} {self.model.canary}"

    async def ask(self, name: str, method: str, path: str, **more: Any) -> Answer:
        """One request of this worker's."""
        return await self.client.ask(self.name, name, method, path, **more)

    async def make(
        self, kind: ThingKind, name: str, path: str, *, after: After | None = None, **body: Any
    ) -> Thing:
        """Make something, with an `Idempotency-Key` or without."""
        thing = self.ledger.thing(kind, name)
        thing.has_key = self.draw.random() < 0.5
        key = f"key {name}" if thing.has_key else ""
        await self._send(thing, path, key, body, after)
        return thing

    async def _send(
        self, thing: Thing, path: str, key: str, body: dict[str, Any], after: After | None
    ) -> None:
        answer = await self.ask(f"make {thing.kind}", "POST", path, key=key, **body)
        is_waiting = answer.slug == "request-in-progress" or (answer.status is None and key)
        thing.was_lost = thing.was_lost or answer.outcome == "unknown"
        if answer.outcome == "ok":
            thing.id, thing.outcome = _get_id(answer.body), "ok"
            if after is not None:
                await after(thing, answer)
        elif answer.outcome == "refused" and not thing.was_lost:
            thing.outcome = "refused"
        if answer.slug == "unknown-model":
            # A setting with a deleted model does not prevent new resources.
            self.client.history.breach(f"no {thing.kind} can be made ({answer.body})")
        if key and (answer.outcome == "unknown" or is_waiting):
            thing.outcome = "unknown"
            # With a key it may be sent again as often as it takes, and happens once.
            self.pending.append(lambda: self._send(thing, path, key, body, after))

    async def delete(self, kind: ThingKind) -> None:
        """Delete something of a kind."""
        chosen = self.draw.choice(self.ledger.usable(kind))
        chosen.deleted = "unknown"
        answer = await self.ask(f"delete {kind}", "DELETE", f"/{kind}s/{chosen.id}")
        chosen.deleted = _confirm_deletion(answer)
        if kind == "chat":
            self.ledger.touched.add(str(chosen.id))

    async def choose(
        self, place: str, member: str, value: Any, *, path: str = "", body: Any = None
    ) -> Answer:
        """Set one setting, and record its possible values in the ledger.

        `place` is the path of the settings, or names what is changed by a request of its own, with
        `path` and `body`.
        """
        choice = self.ledger.choice(place, member)
        ticket = choice.begin(value)
        inner: Any = value
        for name in reversed(member.split(".")):
            inner = {name: inner}
        method, name = ("PUT", "choose") if path.endswith("/preset") else ("PATCH", "settings")
        answer = await self.ask(f"{name} {member}", method, path or place, json=body or inner)
        choice.end(ticket, value, answer.outcome)
        return answer


def _get_id(body: Any) -> str:
    """Return the id of the new resource from a creation or an import."""
    kinds = ("character", "lorebook", "preset")
    inner = next((body[name] for name in kinds if isinstance(body.get(name), dict)), body)
    return str(inner["id"])


def _confirm_deletion(answer: Answer) -> Outcome:
    # Another worker may have deleted it first.
    return "ok" if answer.status == 404 else answer.outcome
