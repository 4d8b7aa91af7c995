"""Tool calls in a fenced block of the text, for models that keep to no schema either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend.generation._tool_calls import TOO_LONG, unreadable_call
from backend.generation._written_calls import (
    MAX_WRITTEN,
    described,
    read_written_calls,
    told,
    written,
)
from backend.generation.model import Prompt, TextPiece, Tool, ToolCall, ToolRound

OPENING = "```tools"
CLOSING = "\n```"
"""JSON has no line breaks within its texts: these marks can't be a part of them."""

_INSTRUCTIONS = """\
You can call tools. To call some, end your reply with a block like this, which the player does not \
see:

```tools
[{"tool": "<name>", "arguments": {}}]
```

It is a JSON list, in the order in which to call. Their results are the next message. Without a \
block, your reply is over. The tools, with the JSON Schemas of their arguments:

"""


def fenced_prompt(prompt: Prompt, tools: Sequence[Tool]) -> Prompt:
    """The prompt for a model that may write calls into a block."""
    return told(prompt, _INSTRUCTIONS + described(tools), _reply) if tools else plain_prompt(prompt)


def plain_prompt(prompt: Prompt) -> Prompt:
    """The prompt with its rounds as messages, where nothing more can be called."""
    return told(prompt, "No tools can be called any more: finish your reply in words.", _reply)


def _reply(tool_round: ToolRound) -> str:
    block = f"{OPENING}\n{written(tool_round.calls)}{CLOSING}" if tool_round.calls else ""
    return "\n\n".join(filter(None, (tool_round.text.rstrip(), block)))


class FencedReader:
    """Streams the text around the blocks and reads the calls in them.

    A block that is too long, or not JSON, is one call with a problem.
    """

    def __init__(self) -> None:
        self._mark = OPENING
        self._held = ""
        self._block: list[str] = []
        self._length = 0

    def feed(self, text: str) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. In proportion to the text, however it is cut."""
        text = self._held + text
        begin = 0
        while (found := text.find(self._mark, begin)) >= 0:
            yield from self._take(text[begin:found])
            begin = found + len(self._mark)
            yield from self._turn()
        end = max(begin, len(text) - held_back(text, self._mark))
        yield from self._take(text[begin:end])
        self._held = text[end:]

    def close(self) -> Iterator[TextPiece | ToolCall]:
        """See `CallReader`. A block that was not closed is read as well."""
        yield from self._take(self._held)
        self._held = ""
        if self._mark == CLOSING:
            yield from self._turn()

    def _take(self, text: str) -> Iterator[TextPiece]:
        if self._mark == OPENING:
            if text:
                yield TextPiece(text)
        elif self._length <= MAX_WRITTEN:
            self._block.append(text)
            self._length += len(text)

    def _turn(self) -> Iterator[ToolCall]:
        """At a mark: a block begins, or has ended."""
        if self._mark == OPENING:
            self._mark, self._block, self._length = CLOSING, [], 0
            return
        self._mark = OPENING
        if self._length > MAX_WRITTEN:
            yield unreadable_call(TOO_LONG)
        else:
            yield from read_written_calls("".join(self._block).strip().removesuffix("```"))


def held_back(text: str, mark: str) -> int:
    """How much of the end of `text` may be the beginning of `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
