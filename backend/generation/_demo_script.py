"""What the demo model says, and how: out of the user's last line alone."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import cycle, islice

from backend.generation.model import (
    ModelError,
    ModelInterruptedError,
    ModelRateLimitError,
    ModelUnavailableError,
    Prompt,
)

_COMMAND = re.compile(
    r"^(?:[^\n:/]{1,80}:\s*)?/demo(?:\s+([a-z-]+))?(?:\s+(\d{1,7}))?", re.MULTILINE
)
"""At the head of a line, after the speaker's name where the prompt puts one."""

_CHARACTER = re.compile(r"\bYou are ([A-Z][^\n.,;:(]{0,60})")
_LONGEST_QUOTE = 160
_MOST_WORDS = 100_000
_USUAL_WORDS = 200
_WORDS_BEFORE_FAILING = 8
_RETRY_AFTER = 30.0

_OPENINGS = (
    "*{name} looks up, as if the words had come from far away.* You said: “{quote}”",
    "*{name} listens, head tilted.* “{quote}” - I heard you well enough.",
    "*{name} repeats it under their breath:* “{quote}”",
)

_EXPLANATION = (
    "But I am only Talekeeper's demo model: no language model wrote this, and I can't follow the "
    "story. For real replies, set TALEKEEPER_GEMINI_API_KEY to a key from Google AI Studio, or "
    "TALEKEEPER_OPENAI_BASE_URL and TALEKEEPER_OPENAI_MODELS to a server of yours, start "
    "Talekeeper again, and choose the model in the chat's settings."
)

_HELP = (
    "I am Talekeeper's demo model. A line that begins with /demo and one of these words commands "
    "me: slow (a tenth of the pace), think (aloud, before the reply), long N (N words, with those "
    "that follow it among them), fail, "
    "fail-midway, cut (I break off), silent (I say nothing), rate-limit."
)

_THOUGHTS = (
    "The user wants a reply. I am the demo model, so there is nothing to weigh; but thinking "
    "aloud is worth seeing once."
)

_STORY = (
    "and then the rain came down on the old harbour while the lamps burned low and somewhere a "
    "door closed softly behind the last of the guests"
)


@dataclass(frozen=True, slots=True)
class Script:
    """What a reply will be, word by word. `fails_after` words, `error` is raised.

    `pace`: how many times longer than usual a word takes.
    """

    words: Iterable[str]
    thoughts: tuple[str, ...] = ()
    pace: float = 1
    error: Callable[[], ModelError] | None = None
    fails_after: int = 0


def script_for(prompt: Prompt) -> Script:
    """The reply to the user's last message, or what that message commands."""
    line = _last_line(prompt)
    usual = Script(words=_reply(prompt, line).split())
    if (command := _COMMAND.search(line)) is None:
        return usual
    if command[1] == "long":
        count = min(int(command[2] or _USUAL_WORDS), _MOST_WORDS)
        told = line[command.end() :].partition("\n")[0].split()
        return Script(words=islice(cycle([*told, *_STORY.split()]), count))
    return _COMMANDED.get(command[1], _helpful)(usual)


def _helpful(_usual: Script) -> Script:
    return Script(words=_HELP.split())


_COMMANDED: dict[str, Callable[[Script], Script]] = {
    "slow": lambda usual: replace(usual, pace=10),
    "think": lambda usual: replace(usual, thoughts=tuple(_THOUGHTS.split())),
    "silent": lambda usual: replace(usual, words=()),
    "fail": lambda usual: replace(
        usual, error=lambda: ModelUnavailableError("The demo model was told to fail.")
    ),
    "rate-limit": lambda usual: replace(
        usual,
        error=lambda: ModelRateLimitError(
            "The demo model was told to ask for a pause.", retry_after=_RETRY_AFTER
        ),
    ),
    "fail-midway": lambda usual: replace(
        usual,
        error=lambda: ModelUnavailableError("The demo model was told to fail midway."),
        fails_after=_WORDS_BEFORE_FAILING,
    ),
    "cut": lambda usual: replace(
        usual,
        error=lambda: ModelInterruptedError("The demo model was told to break off."),
        fails_after=_WORDS_BEFORE_FAILING,
    ),
}


def _last_line(prompt: Prompt) -> str:
    """The user's last message; what follows it (a post-history instruction) is not the user's."""
    spoken = (message.text for message in reversed(prompt.messages) if message.role == "user")
    return next(spoken, "")


def _reply(prompt: Prompt, line: str) -> str:
    quote = " ".join(line.split())
    if len(quote) > _LONGEST_QUOTE:
        quote = quote[:_LONGEST_QUOTE].rstrip() + "..."
    opening = _OPENINGS[zlib.crc32(line.encode("utf-8", "replace")) % len(_OPENINGS)]
    return f"{opening.format(name=_character(prompt), quote=quote or '...')} {_EXPLANATION}"


def _character(prompt: Prompt) -> str:
    """The name in "You are <name>", where a system message says so."""
    for message in prompt.messages:
        if message.role == "system" and (match := _CHARACTER.search(message.text)):
            return match[1].strip()
    return "The character"
