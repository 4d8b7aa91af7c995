"""The story of the continuity trial: what is planted in it, and a model that tells it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backend.campaigns.ledger.items import Kind
from backend.generation.model import Finish, ModelSpec, Piece, Prompt, TextPiece, TokenUsage
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import SAMPLING_FIELDS, Sampling

STORY = Path(__file__).with_name("_campaign_story.toml")
SUMMARY_WORDS = 150
_ROUND_WORDS = (150, 250)
"""Words of a user's line and of a reply, at most: some 400 tokens a round."""

_SENTENCE = re.compile(r"[^.!?]+[.!?]+")
_WORDS = re.compile(r"About (\d+) words")
_PREVIOUS = re.compile(r"<previous_summary>\n(.*?)\n</previous_summary>", re.DOTALL)
_NEW_LINES = re.compile(r"<new_lines>\n(.*?)\n</new_lines>", re.DOTALL)


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, and what the prompt that it leads to has to say, or must not."""

    at: int
    asks: str
    needs: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    asker: str = msgspec.field(default="gm", name="as")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is told in a round, and what becomes of the state by it."""

    round: int
    says: str
    changes: list[tuple[Kind, str, dict[str, Any]]]


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that the story says once, or twice where it changes."""

    kind: str
    steps: list[Step]
    probes: list[Probe]
    stale: tuple[str, ...] = ()
    audience: str | list[str] = "public"


class Story(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is planted, and whom there is from the start."""

    cast: list[tuple[Kind, str, dict[str, Any]]]
    things: list[Thing]

    @property
    def planted(self) -> frozenset[str]:
        """All sentences that it tells."""
        return frozenset(step.says for thing in self.things for step in thing.steps)


@dataclass(frozen=True)
class Round:
    """What the players say, what the game master says, and what only some may know."""

    line: str
    reply: str
    secrets: Sequence[tuple[str, str | list[str]]]


class StoryModel:
    """A model with a window of so many tokens that says the next line, or writes a summary."""

    def __init__(self, window: int, story: Story) -> None:
        self._planted = story.planted
        self.spec = ModelSpec(
            id="story",
            provider="bench",
            name="story",
            title="Story",
            context_window=window,
            max_output_tokens=1_000,
            tokenizer="o200k_base",
            accepts=frozenset(SAMPLING_FIELDS),
            fixed=frozenset({"tool_support"}),
        )
        self.next_reply = ""

    async def stream(self, prompt: Prompt, _: Sampling, **__: Any) -> AsyncGenerator[Piece, None]:
        """Answer as the script has it."""
        texts = [message.text for message in prompt.messages]
        if texts[0].startswith("Task: rolling summary"):
            yield TextPiece(summary_of(texts, self._planted))
        else:
            yield TextPiece(self.next_reply)
        yield TokenUsage(prompt_tokens=0, completion_tokens=1)
        yield Finish("stop")


class StoryRegistry(ModelRegistry):
    def __init__(self, model: StoryModel) -> None:
        super().__init__(built_in=model)  # type: ignore[arg-type]  # it only streams


def summary_of(prompt: Sequence[str], planted: Collection[str]) -> str:
    """What `summarised` makes of the messages of a prompt that asks for a summary."""
    words = int(_first(_WORDS, prompt[0]) or SUMMARY_WORDS)
    new = _first(_NEW_LINES, prompt[-1])
    lines = [re.sub(r"^#\d+ (?:[^:\n]{1,40}: )?", "", line) for line in new.split("\n")]
    return summarised(_first(_PREVIOUS, prompt[-1]), lines, words, planted)


def summarised(previous: str, lines: Sequence[str], words: int, planted: Collection[str]) -> str:
    """What a summary of so many words can hold at best: what is planted, the newest of it."""
    kept: list[str] = []
    told = [each.strip() for text in (previous, *lines) for each in _SENTENCE.findall(text)]
    for sentence in reversed([each for each in told if each in planted]):
        words -= len(sentence.split())
        if words < 0:
            break
        kept.append(sentence)
    return " ".join(reversed(kept)) or "Nothing of note happened."


def read_story() -> Story:
    """What is planted."""
    return msgspec.convert(tomllib.loads(STORY.read_text(encoding="utf-8")), Story, strict=True)


def rounds_of(turns: Sequence[tuple[str, str]], story: Story, count: int) -> list[Round]:
    """Rounds of the transcripts, with what is planted at the end of the replies."""
    found: list[Round] = []
    line: list[str] = []
    reply: list[str] = []
    for speaker, text in turns:
        (reply if speaker == "MATT" else line).extend(text.split())
        if len(reply) < _ROUND_WORDS[1] // 2 or not line:
            continue
        steps = [
            (step, thing.audience)
            for thing in story.things
            for step in thing.steps
            if step.round == len(found) + 1
        ]
        told = [step.says for step, audience in steps if audience == "public"]
        found.append(
            Round(
                line=" ".join(line[: _ROUND_WORDS[0]]),
                reply=" ".join([*reply[: _ROUND_WORDS[1]], *told]),
                secrets=[(s.says, audience) for s, audience in steps if audience != "public"],
            )
        )
        line, reply = [], []
        if len(found) == count:
            return found
    raise SystemExit(f"The transcripts have {len(found)} rounds, {count} are needed.")


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
