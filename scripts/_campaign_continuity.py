"""Whether prompts hold what a story needs, nothing that is over, nothing that is secret.

40 rounds of CRD3's transcripts, with what `_campaign_story.toml` plants in them. Beside Talekeeper
there are two ways of others: the last rounds that fit, and those behind a rolling summary, written
by the same scripted model.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation, build_item
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.ledger.records import get_campaign
from backend.chats.models import Chat, Message
from backend.database.base import new_id
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from scripts._bench import Account, client, open_account, serving, until_idle
from scripts._bench_table import Row, new_database
from scripts._campaign_story import (
    SUMMARY_WORDS,
    Probe,
    Round,
    Story,
    StoryModel,
    StoryRegistry,
    Thing,
    read_story,
    rounds_of,
    summarised,
)
from scripts._stopwatch import prompt_settings

WINDOWS = (4_096, 8_192, 16_384, 32_768)
ROUNDS = 40
ASIDE = "(aside)"
"""What a secret answers."""

HOT_ROUNDS = 4
"""Rounds that no summary covers, and after how many it is written again: a campaign's default."""

PRESENT = frozenset({"state", "entity", "campaign", "glossary", "scenes"})
"""Sections of a prompt that say what is, and not what was said."""


@dataclass
class Score:
    """How the probes of one way to make prompts came out."""

    found: Counter[str] = field(default_factory=Counter[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    stale: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])
    missed: list[str] = field(default_factory=list[str])

    def judge(self, thing: Thing, probe: Probe, said: Sequence[tuple[str, str]]) -> None:
        """Note what a prompt says; `said` are its lines, each with the kind of its section."""
        if probe.hidden:
            if _says((text for _, text in said), probe.hidden):
                self.leaked.append(f"{thing.kind} {probe.at}: {probe.asks}")
            return
        self.asked[thing.kind] += 1
        is_found = _says((text for _, text in said), probe.needs)
        if is_found:
            self.found[thing.kind] += 1
        else:
            self.missed.append(f"{thing.kind} {probe.at}: {probe.asks}")
        if thing.stale and _says(
            (text for kind, text in said if kind in PRESENT or not is_found), thing.stale
        ):
            self.stale.append(f"{thing.kind} {probe.at}: {probe.asks}")

    @property
    def percent(self) -> float:
        """Answers found, of all that were asked for."""
        return round(100 * self.found.total() / max(1, self.asked.total()), 1)


class Writer:
    """Writes into the ledger what a compactor would, bound to the reply that told it."""

    def __init__(self, account: Account, campaign_id: UUID, chat_id: UUID) -> None:
        self._account = account
        self._campaign_id, self._chat_id = campaign_id, chat_id
        self.ids: dict[str, UUID] = {}

    async def write(
        self, changes: Sequence[tuple[Kind, str, dict[str, Any]]], *, by_hand: bool = False
    ) -> None:
        """Write changes as one version."""
        if not changes:
            return
        identity = self._account.identity
        async with self._account.parts.database.write() as session:
            campaign = await get_campaign(session, identity, self._campaign_id, lock=True)
            chat = await session.get_one(Chat, self._chat_id)
            message = None if by_hand else await session.get_one(Message, chat.leaf_id)
            await ledger_store.append_changes(
                session,
                identity.sealer,
                campaign,
                [self._change(*each) for each in changes],
                actor="user" if by_hand else "compactor",
                message=message,
            )

    def audience(self, names: str | Sequence[str]) -> str | list[str]:
        """An audience as the API takes it."""
        return names if isinstance(names, str) else [str(self.ids[name]) for name in names]

    def _change(self, kind: Kind, key: str, fields: dict[str, Any]) -> Change:
        values = {name: self._value(name, value) for name, value in fields.items()}
        if key in self.ids:
            plain = {name: value for name, value in values.items() if name[0] not in "+-"}
            return Change(
                kind,
                self.ids[key],
                Operations(
                    set=plain,
                    add={name[1:]: value for name, value in values.items() if name[0] == "+"},
                    remove={name[1:]: value for name, value in values.items() if name[0] == "-"},
                ),
            )
        self.ids[key] = new_id()
        called = {"entity": "name", "term": "term"}.get(kind)
        if called in STRUCTS[kind].__struct_fields__:
            values.setdefault(called, key)
        return Change(kind, self.ids[key], build_creation(build_item(kind, values)))

    def _value(self, name: str, value: Any) -> Any:
        if name.endswith("_id") or name == "superseded_by":
            return str(self.ids[value])
        return self.audience(value) if name == "audience" else value


async def bench_continuity(
    turns: Sequence[tuple[str, str]],
    *,
    windows: Sequence[int] = WINDOWS,
    rounds: int = ROUNDS,
    embedding: Path | None,
    explain: bool = False,
) -> list[Row]:
    """The share of answers found at each size of the window, by each way."""
    story = read_story()
    told = rounds_of(turns, story, rounds)
    rows: list[Row] = []
    for window in windows:
        scores = {name: Score() for name in ("Talekeeper", "sliding window", "rolling summary")}
        prompt_tokens = await _talekeeper(story, told, window, embedding, scores["Talekeeper"])
        _baselines(story, told, prompt_tokens, scores)
        for name, score in scores.items():
            kinds = ", ".join(f"{k} {score.found[k]}/{n}" for k, n in score.asked.items())
            note = f"stale {len(score.stale)}, leaked {len(score.leaked)}; {kinds}"
            rows.append(Row("", f"{window:,}: {name}", score.percent, unit="%", note=note))
            if explain:
                for what, which in (
                    ("missed", score.missed),
                    ("stale", score.stale),
                    ("leaked", score.leaked),
                ):
                    rows += [Row("", f"  {what}", 0, note=each) for each in which]
    return rows


async def _talekeeper(
    story: Story, told: Sequence[Round], window: int, embedding: Path | None, score: Score
) -> int:
    """Play the rounds through a server and judge its prompts; gives back their budget."""
    model, prompt_tokens = StoryModel(window, story), 0
    more: dict[str, Any] = {"embedder": "none"}
    if embedding is not None:
        more = {"embedder": "local", "embedding_model_path": embedding}
    async with new_database("sqlite") as url:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            settings = prompt_settings(url, Path(folder), **more)
            account = await open_account(
                settings, Database(url), "story", registry=StoryRegistry(model)
            )
            async with serving(account.parts) as port, client(account, port) as api:
                table = await _Table.open(account, api, model, story)
                for number, each in enumerate(told, 1):
                    await table.play(number, each)
                    for thing in story.things:
                        for probe in thing.probes:
                            if probe.at == number:
                                said, prompt_tokens = await table.ask(probe)
                                score.judge(thing, probe, said)
            await account.parts.database.dispose()
    return prompt_tokens


@dataclass
class _Table:
    """A chat of a campaign, at which the story is played."""

    account: Account
    api: httpx.AsyncClient
    model: StoryModel
    story: Story
    chat_id: str
    writer: Writer

    @classmethod
    async def open(
        cls, account: Account, api: httpx.AsyncClient, model: StoryModel, story: Story
    ) -> _Table:
        """Make the campaign, its cast, its chat, and a persona for each player's character."""
        campaign = await _made(
            api, "/campaigns", {"name": "Saltgate", "settings": {"hidden_information": True}}
        )
        master = {"name": "Game master", "description": "Tells the story."}
        character = await _made(api, "/characters", master)
        body = {"campaign_id": campaign["id"], "character_ids": [character["id"]]}
        chat = await _made(api, "/chats", body)
        writer = Writer(account, UUID(campaign["id"]), UUID(chat["id"]))
        await writer.write(story.cast, by_hand=True)
        return cls(account, api, model, story, chat["id"], writer)

    async def play(self, number: int, told: Round) -> None:
        """Take a round's turn, and write what it changes."""
        await self._turn(told.line, told.reply)
        steps = [
            step for thing in self.story.things for step in thing.steps if step.round == number
        ]
        for step in steps:
            await self.writer.write(step.changes)
        for says, audience in told.secrets:
            await self._turn(ASIDE, says, audience=self.writer.audience(audience))
        await until_idle(self.account)

    async def ask(self, probe: Probe) -> tuple[list[tuple[str, str]], int]:
        """The lines of the prompt that a question leads to, and what it may take in tokens."""
        asker = probe.asker if probe.asker == "gm" else str(self.writer.ids[probe.asker])
        body = {"text": probe.asks, "prompt": True, "viewpoint": asker}
        answer = await self.api.post(f"/chats/{self.chat_id}/context", json=body)
        view = answer.raise_for_status().json()
        budget = view["budgets"]["total"] - view["budgets"]["reply_reserve"]
        return prompt_lines(view, probe.asks), budget

    async def _turn(self, text: str, reply: str, **more: Any) -> None:
        self.model.next_reply = reply
        body = {"text": text, **more}
        answer = await self.api.post(f"/chats/{self.chat_id}/turns", json=body)
        if "turn.completed" not in answer.text:
            raise SystemExit(answer.text)


def _baselines(story: Story, told: Sequence[Round], budget: int, scores: dict[str, Score]) -> None:
    """The last messages that fit, without and with a summary of those before."""
    count = get_tokenizer("o200k_base").count
    system = "You are the game master. Tell the story."
    lines: list[list[str]] = []
    summary, covered = "", 0
    for number, each in enumerate(told, 1):
        asides = [text for says, _ in each.secrets for text in (ASIDE, says)]
        lines.append([each.line, each.reply, *asides])
        if number - HOT_ROUNDS - covered >= HOT_ROUNDS:
            new = [text for one in lines[covered : number - HOT_ROUNDS] for text in one]
            summary, covered = (
                summarised(summary, new, SUMMARY_WORDS, story.planted),
                number - HOT_ROUNDS,
            )
        for thing in story.things:
            for probe in thing.probes:
                if probe.at != number:
                    continue
                room = budget - count(system) - count(probe.asks) - 20
                texts = [text for one in lines for text in one]
                window = recent(texts, room, count)
                scores["sliding window"].judge(thing, probe, [("history", one) for one in window])
                behind = [summary, *recent(texts, room - count(summary), count)]
                scores["rolling summary"].judge(thing, probe, [("history", one) for one in behind])


def recent(texts: Sequence[str], room: int, count: Callable[[str], int]) -> list[str]:
    """The last texts that fit together."""
    kept: list[str] = []
    for text in reversed(texts):
        room -= count(text) + 4
        if room < 0:
            break
        kept.append(text)
    return kept[::-1]


def _says(lines: Iterable[str], words: Sequence[str]) -> bool:
    """Whether a line, such as a paragraph of a message, says all of the words."""
    folded = [word.casefold() for word in words]
    return any(all(word in line.casefold() for word in folded) for line in lines)


def prompt_lines(view: dict[str, Any], asks: str) -> list[tuple[str, str]]:
    """The lines of a previewed prompt but for the question, with the kind of their section."""
    present = [
        (each["kind"], line)
        for each in (*view["items"], *view["retrieved"])
        if each["kind"] in PRESENT
        for line in (each.get("text") or "").split("\n")
    ]
    whole = _lines(each["text"] for each in view["prompt"])
    return present + [("prompt", line) for line in whole if asks not in line]


def _lines(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in text.split("\n")]


async def _made(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await api.post(path, json=body)
    if answer.is_error:
        raise SystemExit(answer.text)
    return answer.json()
