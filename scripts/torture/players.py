"""Workers that play as people do: lines, swipes, edits, branches, copies, imports, deletions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from scripts.torture.checks import has_text
from scripts.torture.client import Answer
from scripts.torture.ledger import Deletion, Line, Thing
from scripts.torture.model import REPLY_MARK, WORDS
from scripts.torture.own_models import OwnModels
from scripts.torture.own_presets import Presets
from scripts.torture.things import Things
from scripts.torture.worker import MOST_CHATS, Action, Worker

SENDS_AGAIN = 0.4
"""Chance that a worker repeats an unanswered request instead of a new action."""

MOST_CHOICES = 4
GIVES_UP, CHOOSES_TWICE = 0.15, 0.3
"""Chances that a waiting turn is cancelled, and that a choice is sent twice."""


@dataclass
class Player(Worker):
    """One worker of an account. Several share its chats."""

    keeps_chronicle: bool = False
    campaign_id: str = ""
    is_busy: bool = False

    def __post_init__(self) -> None:
        self.things, self.models, self.presets = Things(self), OwnModels(self), Presets(self)

    async def play(self, may_act: asyncio.Event, is_over: asyncio.Event) -> None:
        """Do one action after the other while `may_act` is set."""
        actions: list[tuple[float, Action]] = [
            (40, self.say),
            (12, self.regenerate),
            (8, self.go_on),
            (10, self.edit),
            (8, self.switch),
            (4, self.fork),
            (6, self.delete_message),
            (5, self.open_chat),
            (7, self.things.import_card),
            (4, self.things.import_lorebook),
            (4, self.things.change_persona),
            (8, self.models.change_provider),
            (6, self.models.choose_model),
            (5, self.models.choose_embedding),
            (3, self.models.look_elsewhere),
            (5, self.presets.change),
            (5, self.presets.choose),
            (3, self.read),
        ]
        weights, kinds = [weight for weight, _ in actions], [each for _, each in actions]
        while not is_over.is_set():
            await may_act.wait()
            self.is_busy = True
            try:
                if self.pending and self.draw.random() < SENDS_AGAIN:
                    # Requests without an answer.
                    await self.pending.pop(0)()
                else:
                    await self.draw.choices(kinds, weights)[0]()
            finally:
                self.is_busy = False
            await asyncio.sleep(self.draw.uniform(0, 0.05))

    # --- playing ---

    async def say(self) -> None:
        if chat := await self._chat():
            await self._take(chat, {"text": self.text()})

    async def regenerate(self) -> None:
        """Swipe: add another reply to the last line."""
        if (found := await self._last("assistant")) and found[1]["parent_id"] is not None:
            await self._take(found[0], {"regenerate_of": found[1]["id"]})

    async def go_on(self) -> None:
        if found := await self._last("assistant"):
            await self._take(found[0], {"continue": True}, continues=found[1]["id"])

    async def _take(self, chat: str, body: dict[str, Any], *, continues: str = "") -> None:
        turn_id = str(UUID(int=self.draw.getrandbits(128), version=4))
        body = {**body, "turn_id": turn_id}
        if not continues:
            self.ledger.answered[chat] += 1
        await self._hear(chat, body, continues, retries=1)

    async def _hear(self, chat: str, body: dict[str, Any], continues: str, retries: int) -> None:
        began = self.client.history.clock
        self.ledger.touched.add(chat)
        heard = await self.client.turn(self.name, chat, body)
        self.ledger.touched.add(chat)
        if heard.slug == "unknown-model":
            await self.models.back_to_usual(chat)
        if heard.slug == "turn-waiting" and heard.started is not None:
            await self._answer(chat, heard.started["turn_id"], heard.waiting)
        elif heard.started is not None:
            if "text" in body:
                line_id = heard.started["user_message_id"]
                line = Line(line_id, chat, body["text"], since=began)
                self.ledger.lines.setdefault(line_id, line)
                self.ledger.parents[heard.started["reply_id"]] = line_id
            if heard.is_saved:
                self._save_reply(chat, heard.started, heard.text, continues, began)
            elif heard.waiting is not None:
                await self._answer(chat, heard.started["turn_id"], heard.waiting)
        if heard.status is None and retries and self.draw.random() < 0.7:
            # The same turn once more: it must not be taken twice.
            self.pending.append(lambda: self._hear(chat, body, continues, retries - 1))

    async def _answer(self, chat: str, turn_id: str, waiting: dict[str, Any] | None) -> None:
        """Send the choice that a turn waits for, sometimes twice, or cancel the turn."""
        for _ in range(MOST_CHOICES):
            if waiting is None:
                return
            if self.draw.random() < GIVES_UP:
                await self.client.ask(self.name, "stop", "POST", f"/turns/{turn_id}/stop")
                return
            began = self.client.history.clock
            option = self.draw.choice(waiting["options"])["id"]
            times = 2 if self.draw.random() < CHOOSES_TWICE else 1
            heard, *_ = await asyncio.gather(
                *(self.client.choose(self.name, chat, turn_id, option) for _ in range(times))
            )
            self.ledger.touched.add(chat)
            if heard.is_saved and heard.started is not None:
                self._save_reply(chat, heard.started, heard.text, "", began)
            waiting = heard.waiting

    def _save_reply(
        self, chat: str, started: dict[str, Any], text: str, continues: str, began: float
    ) -> None:
        reply_id = started["reply_id"]
        if continues and continues != reply_id:
            # If another line came first, the continuation is a new reply.
            self.ledger.answered[chat] += 1
        marks = REPLY_MARK.findall(text)
        line = self.ledger.lines.setdefault(reply_id, Line(reply_id, chat, None, since=began))
        for mark in marks:
            if self.model.outputs.get(mark) == text and mark not in line.marks:
                line.marks.append(mark)

    async def edit(self) -> None:
        """Edit a message as a sibling, which becomes active."""
        if found := await self._any_message():
            chat, message = found
            text, began = self.text(), self.client.history.clock
            path = f"/messages/{message['id']}"
            made = await self.client.ask(self.name, "edit", "PATCH", path, json={"text": text})
            self.ledger.touched.add(chat)
            if made.outcome == "ok":
                sibling = made.body["id"]
                self.ledger.parents[sibling] = made.body["parent_id"]
                self.ledger.lines[sibling] = Line(sibling, chat, text, since=began)

    async def switch(self) -> None:
        """Go to another branch."""
        if found := await self._any_message():
            chat, message = found
            path = f"/messages/{message['id']}"
            page = await self.client.ask(self.name, "siblings", "GET", f"{path}/siblings")
            if page.outcome == "ok" and page.body["items"]:
                other = self.draw.choice(page.body["items"])
                path = f"/messages/{other['id']}/activate"
                body = {"follow": self.draw.random() < 0.7}
                await self.client.ask(self.name, "activate", "POST", path, json=body)
                self.ledger.touched.add(chat)

    async def delete_message(self) -> None:
        """Delete a message near the end, with all below it."""
        if found := await self._any_message():
            chat, message = found
            noted = Deletion(chat, message["id"])
            self.ledger.deletions.append(noted)
            path = f"/messages/{message['id']}"
            answer = await self.client.ask(self.name, "delete message", "DELETE", path)
            noted.outcome = answer.outcome
            if answer.outcome != "unknown":
                noted.until = self.client.history.clock
            self.ledger.touched.add(chat)

    # --- things with names ---

    async def open_chat(self) -> None:
        """Open a chat, with one of the characters or without."""
        if len(self.ledger.usable("chat")) >= MOST_CHATS:
            await self.delete("chat")
            return
        characters = [str(each.id) for each in self.ledger.usable("character")]
        chosen = self.draw.sample(characters, k=min(len(characters), self.draw.randint(0, 1)))
        title = self.unique("chat")
        body: dict[str, Any] = {"title": title, "character_ids": chosen}
        if self.campaign_id:
            body["campaign_id"] = self.campaign_id
        await self.make("chat", title, "/chats", json=body, after=self._record_chat)

    async def _record_chat(self, _: Thing, answer: Answer) -> None:
        if self.keeps_chronicle:
            path = f"/chats/{answer.body['id']}/settings"
            body = {"chronicle_enabled": True}
            await self.client.ask(self.name, "chat settings", "PATCH", path, json=body)

    async def fork(self) -> None:
        """Copy a branch into a new chat."""
        if (found := await self._any_message()) and (
            len(self.ledger.usable("chat")) < MOST_CHATS + 2
        ):
            chat, message = found
            title = self.unique("chat")
            body = {"message_id": message["id"], "title": title}
            # What a copy may hold follows from the original, not from turns of its own.
            await self.make(
                "chat", title, f"/chats/{chat}/fork", json=body, after=self._record_fork
            )

    async def _record_fork(self, _: Thing, answer: Answer) -> None:
        self.ledger.copies.add(answer.body["id"])

    # --- looking ---

    async def read(self) -> None:
        """Search, and preview the next prompt."""
        params = {"q": self.draw.choice(WORDS)}
        await self.client.ask(self.name, "search", "GET", "/search", params=params)
        if chat := await self._chat():
            await self.client.ask(self.name, "preview", "GET", f"/chats/{chat}/context")

    async def _chat(self) -> str | None:
        chats = self.ledger.usable("chat")
        if not chats:
            await self.open_chat()
            return None
        return self.draw.choice(chats).id

    async def _messages(self) -> tuple[str, list[dict[str, Any]]] | None:
        """Return a chat and the end of its branch, after a comparison with the ledger."""
        chat = await self._chat()
        if chat is None:
            return None
        path = f"/chats/{chat}/messages"
        page = await self.client.ask(self.name, "read path", "GET", path, params={"limit": 12})
        if page.outcome != "ok":
            return None
        items: list[dict[str, Any]] = page.body["items"]
        for item in items:
            self.ledger.parents[item["id"]] = item["parent_id"]
            known = self.ledger.lines.get(item["id"])
            if known is not None and not has_text(known, item["text"]):
                self.client.history.breach(f"changed: message {item['id']} reads otherwise")
        return (chat, items) if items else None

    async def _last(self, role: str) -> tuple[str, dict[str, Any]] | None:
        found = await self._messages()
        if found is None or found[1][-1]["role"] != role:
            return None
        return found[0], found[1][-1]

    async def _any_message(self) -> tuple[str, dict[str, Any]] | None:
        found = await self._messages()
        return (found[0], self.draw.choice(found[1])) if found else None
