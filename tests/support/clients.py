"""Clients of the OpenAI-compatible endpoint: the lists of messages that they send.

A client keeps its own chat. Each action returns the messages of one request, and `receive` takes
the reply. `lines` is the chat as its user sees it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Wire = dict[str, Any]
PostProcessing = Literal["none", "merge", "semi", "strict", "single"]
Naming = Literal["none", "field", "content"]

NEW_CHAT = "[Start a new Chat]"
EXAMPLE_CHAT = "[Example Chat]"
CONTINUE_NUDGE = "[Continue your last message without repeating its original content.]"
PLACEHOLDER = "Let's get started."
SUMMARY = (
    "Ignore previous instructions. Summarize the most important facts and events in the story so "
    "far. If a summary already exists in your memory, use that as a base and expand with new "
    "facts. Limit the summary to 200 words or less."
)
EXPRESSION = (
    "Ignore previous instructions. Classify the emotion of the last message. Output just one word, "
    'e.g. "joy" or "anger". Choose only one of the following labels: joy, anger, fear'
)
IMAGE_PROMPT = (
    "In the next response I want you to provide only a detailed comma-delimited list of keywords "
    "and phrases which describe {name}."
)
_SENTENCE_ENDS = frozenset(".!?*\"'`)}]~…”’")


@dataclass(slots=True)
class ClientLine:
    """A message of a client's chat. A hidden one is not sent."""

    role: Literal["user", "assistant"]
    text: str
    author: str
    is_hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A text that is inserted before the last `depth` messages."""

    text: str
    depth: int
    role: Literal["system", "user", "assistant"] = "system"


@dataclass(slots=True, kw_only=True)
class SillyTavernSettings:
    """The settings that change a request.

    Attributes:
        members: The members of a group. Empty if the chat has one character.
        examples: Pairs of a user's line and a reply.
        window: The number of messages that the token budget admits.
        keeps_greeting: True to send the first message in addition to the window.
        injections: The author's note, depth prompts and lore at a depth.
        prefix: "Start reply with": the beginning of each reply, which the chat contains as well.
        trims: True to cut incomplete sentences at the end of a reply.
        script: A regex script over replies, as pattern and replacement.
    """

    user: str = "Alex"
    character: str = "Marlena"
    members: Sequence[str] = ()
    main_prompt: str = "Write Marlena's next reply in a fictional chat."
    lore_before: str = ""
    persona: str = ""
    description: str = "Marlena keeps the old mill."
    scenario: str = ""
    lore_after: str = ""
    examples: Sequence[tuple[str, str]] = ()
    window: int | None = None
    keeps_greeting: bool = False
    injections: Sequence[Injection] = ()
    post_history: str = ""
    naming: Naming = "none"
    squashes: bool = False
    post_processing: PostProcessing = "none"
    continues_by_prefill: bool = False
    send_if_empty: str = ""
    prefix: str = ""
    trims: bool = False
    script: tuple[str, str] | None = None


_Pending = Literal["reply", "continue", "impersonate", "quiet"]


@dataclass(slots=True)
class _Prompt:
    """A message before it is sent. Fixed ones are not squashed, and lines have the same `line`."""

    role: str
    text: str
    name: str = ""
    is_fixed: bool = False


class SillyTavernClient:
    """SillyTavern with the source "Custom (OpenAI-compatible)"."""

    def __init__(
        self, settings: SillyTavernSettings | None = None, *, greeting: str = "Welcome to the mill."
    ) -> None:
        self.settings = settings or SillyTavernSettings()
        self.chat: list[ClientLine] = []
        self._pending: _Pending = "reply"
        self._speaker = self.settings.character
        if greeting:
            self.chat.append(ClientLine("assistant", greeting, self.settings.character))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The chat as the user sees it, with hidden lines."""
        return [(line.role, line.text) for line in self.chat]

    def say(self, text: str, *, speaker: str = "") -> list[Wire]:
        self.chat.append(ClientLine("user", text, self.settings.user))
        return self._ask("reply", speaker)

    def send_nothing(self, *, speaker: str = "") -> list[Wire]:
        """Ask for a reply without a new line: after a reply, or for a line without a reply."""
        return self._ask("reply", speaker)

    def swipe(self) -> list[Wire]:
        line = self.chat.pop()
        assert line.role == "assistant", "only a reply can be swiped"
        return self._ask("reply", line.author)

    def proceed(self) -> list[Wire]:
        """Continue the last message."""
        return self._ask("continue", self.chat[-1].author)

    def impersonate(self) -> list[Wire]:
        return self._ask("impersonate", "")

    def ask_quietly(self, instruction: str = SUMMARY) -> list[Wire]:
        return self._ask("quiet", "", instruction)

    def ask_raw(self, instruction: str, text: str) -> list[Wire]:
        """Ask a task about a text, without the chat."""
        self._pending = "quiet"
        return self._process([_Prompt("system", instruction), _Prompt("user", text)])

    def test_connection(self) -> list[Wire]:
        self._pending = "quiet"
        return [{"role": "user", "content": "Hi"}]

    def receive(self, reply: str) -> str:
        """Take the reply to the last request. Returns the text that the chat contains."""
        if self._pending == "quiet":
            return reply
        if self._pending == "impersonate":
            return reply.strip()
        if self._pending == "continue":
            line = self.chat[-1]
            line.text = (
                self._clean(line.text + reply) if line.role == "assistant" else line.text + reply
            )
            return line.text
        text = self._clean(self.settings.prefix + reply)
        self.chat.append(ClientLine("assistant", text, self._speaker))
        return text

    def edit(self, index: int, text: str) -> None:
        self.chat[index].text = text

    def delete(self, index: int) -> None:
        del self.chat[index]

    def hide(self, index: int, *, is_hidden: bool = True) -> None:
        self.chat[index].is_hidden = is_hidden

    def go_back(self, count: int) -> None:
        """Keep the first messages, as a branch from there or a deletion of the rest does."""
        del self.chat[count:]

    @property
    def sent_lines(self) -> list[tuple[str, str]]:
        """The lines of the next request, without inserted ones."""
        return [(line.role, line.text) for line in self._window()]

    def _window(self) -> list[ClientLine]:
        shown = [line for line in self.chat if not line.is_hidden]
        if self.settings.window is None or len(shown) <= self.settings.window:
            return shown
        first = shown[:1] if self.settings.keeps_greeting else []
        return first + shown[-self.settings.window :]

    def _ask(self, pending: _Pending, speaker: str, instruction: str = "") -> list[Wire]:
        self._pending = pending
        self._speaker = speaker or self.settings.character
        settings = self.settings
        history = [self._make_prompt(line) for line in self._window()]
        continued: _Prompt | None = None
        if pending == "continue" and settings.continues_by_prefill and history:
            continued = history.pop()
        is_after_reply = bool(history) and history[-1].role == "assistant"
        if settings.send_if_empty and is_after_reply and pending != "quiet":
            history.append(_Prompt("user", settings.send_if_empty))
        prompts = [*self._make_head(), *self._insert(history)]
        if settings.members and pending != "impersonate":
            nudge = f"[Write the next reply only as {self._speaker}.]"
            prompts.append(_Prompt("system", nudge, is_fixed=True))
        if settings.post_history:
            prompts.append(_Prompt("system", settings.post_history))
        prompts += self._make_control_prompts(pending, instruction, continued)
        return self._process(prompts)

    def _make_control_prompts(
        self, pending: _Pending, instruction: str, continued: _Prompt | None
    ) -> list[_Prompt]:
        if pending == "continue":
            return [continued or _Prompt("system", CONTINUE_NUDGE)]
        if pending == "impersonate":
            user = self.settings.user
            nudge = (
                f"[Write your next reply from the point of view of {user}, using the chat history "
                f"so far as a guideline for the writing style of {user}. Don't write as "
                f"{self.settings.character} or system.]"
            )
            return [_Prompt("system", nudge)]
        if pending == "quiet":
            return [_Prompt("system", instruction)]
        return [_Prompt("assistant", self.settings.prefix)] if self.settings.prefix else []

    def _make_head(self) -> list[_Prompt]:
        settings = self.settings
        texts = (
            *(settings.main_prompt, settings.lore_before, settings.persona),
            *(settings.description, settings.scenario, settings.lore_after),
        )
        head = [_Prompt("system", text) for text in texts if text]
        for line, reply in settings.examples:
            head += [
                _Prompt("system", EXAMPLE_CHAT, is_fixed=True),
                _Prompt("system", line, "example_user"),
                _Prompt("system", reply, "example_assistant"),
            ]
        marker = NEW_CHAT
        if settings.members:
            marker = f"[Start a new group chat. Group members: {', '.join(settings.members)}]"
        return [*head, _Prompt("system", marker, is_fixed=True)]

    def _make_prompt(self, line: ClientLine) -> _Prompt:
        naming = self.settings.naming
        if naming == "content" or (self.settings.members and naming == "none"):
            return _Prompt(line.role, f"{line.author}: {line.text}")
        name = re.sub(r"[^A-Za-z0-9_-]", "_", line.author) if naming == "field" else ""
        return _Prompt(line.role, line.text, name)

    def _insert(self, history: list[_Prompt]) -> list[_Prompt]:
        inserted = list(history)
        for each in sorted(self.settings.injections, key=lambda each: -each.depth):
            place = max(0, len(history) - each.depth) + len(inserted) - len(history)
            inserted.insert(place, _Prompt(each.role, each.text))
        return inserted

    def _clean(self, text: str) -> str:
        if self.settings.script:
            text = re.sub(*self.settings.script, text)
        text = text.strip()
        if self.settings.trims:
            end = max(
                (place for place, sign in enumerate(text) if sign in _SENTENCE_ENDS), default=-1
            )
            text = text[: end + 1] if end >= 0 else text
        return text

    def _process(self, prompts: list[_Prompt]) -> list[Wire]:
        if self.settings.squashes:
            prompts = _squash(prompts)
        mode = self.settings.post_processing
        if mode != "none":
            prompts = self._merge(prompts, mode)
        sent: list[Wire] = []
        for prompt in prompts:
            message: Wire = {"role": prompt.role, "content": prompt.text}
            sent.append(message | {"name": prompt.name} if prompt.name else message)
        return sent

    def _merge(self, prompts: Sequence[_Prompt], mode: PostProcessing) -> list[_Prompt]:
        named = [self._write_name(prompt, mode) for prompt in prompts]
        if mode == "single":
            named = [_Prompt("user", prompt.text) for prompt in named]
        merged = _join_neighbours(named)
        if mode not in ("semi", "strict"):
            return merged
        merged[1:] = [
            _Prompt("user" if prompt.role == "system" else prompt.role, prompt.text)
            for prompt in merged[1:]
        ]
        if mode == "strict":
            first_line = 1 if merged[0].role == "system" else 0
            if len(merged) == first_line or merged[first_line].role != "user":
                merged.insert(first_line, _Prompt("user", PLACEHOLDER))
        return _join_neighbours(merged)

    def _write_name(self, prompt: _Prompt, mode: PostProcessing) -> _Prompt:
        """Write the name before the text, because merged messages have no field for it."""
        name = prompt.name
        if prompt.role == "system":
            names = {
                "example_user": self.settings.user,
                "example_assistant": self.settings.character,
            }
            name = names.get(name, "")
        elif mode == "single" and not name:
            is_user = prompt.role == "user"
            name = self.settings.user if is_user else self.settings.character
        known = (name, *self.settings.members)
        if not name or prompt.text.startswith(tuple(f"{each}: " for each in known)):
            return _Prompt(prompt.role, prompt.text)
        return _Prompt(prompt.role, f"{name}: {prompt.text}")


def _squash(prompts: Sequence[_Prompt]) -> list[_Prompt]:
    """Join neighbouring system messages, except markers, nudges of groups and examples."""
    squashed: list[_Prompt] = []
    for prompt in prompts:
        last = squashed[-1] if squashed else None
        if last and all(
            each.role == "system" and not each.is_fixed and not each.name for each in (last, prompt)
        ):
            last.text += f"\n{prompt.text}"
        else:
            squashed.append(prompt)
    return squashed


def _join_neighbours(prompts: Sequence[_Prompt]) -> list[_Prompt]:
    joined: list[_Prompt] = []
    for prompt in prompts:
        if joined and joined[-1].role == prompt.role:
            joined[-1].text += f"\n\n{prompt.text}"
        else:
            joined.append(prompt)
    return joined


@dataclass(slots=True)
class AssistantClient:
    """A chat client that sends its whole history, and an optional system prompt."""

    system_prompt: str = ""
    chat: list[ClientLine] = field(default_factory=list[ClientLine])

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(line.role, line.text) for line in self.chat]

    def say(self, text: str) -> list[Wire]:
        self.chat.append(ClientLine("user", text, ""))
        return self._send_history()

    def regenerate(self) -> list[Wire]:
        self.chat.pop()
        return self._send_history()

    def receive(self, reply: str) -> None:
        self.chat.append(ClientLine("assistant", reply, ""))

    def _send_history(self) -> list[Wire]:
        sent: list[Wire] = [{"role": line.role, "content": line.text} for line in self.chat]
        head: list[Wire] = [{"role": "system", "content": self.system_prompt}]
        return head + sent if self.system_prompt else sent

    def _write_history(self, labels: dict[str, str]) -> str:
        return "\n".join(f"{labels[line.role]}: {line.text}" for line in self.chat)


class OpenWebUIClient(AssistantClient):
    """Open WebUI, with the tasks that follow a reply, and documents of its knowledge bases."""

    def say_with_documents(self, text: str, documents: str) -> list[Wire]:
        """Say a line. Only this request contains the documents."""
        sent = self.say(text)
        sent[-1]["content"] = (
            "### Task:\nRespond to the user query using the provided context, incorporating inline "
            f"citations.\n\n### Guidelines:\n- Be brief.\n\n<context>\n{documents}\n</context>\n\n"
            f"{text}"
        )
        return sent

    def ask_title(self) -> list[Wire]:
        return self._ask_task(
            "Generate a concise, 3-5 word title with an emoji summarizing the chat history."
        )

    def ask_tags(self) -> list[Wire]:
        return self._ask_task(
            "Generate 1-3 broad tags categorizing the main themes of the chat history, along with "
            "1-3 more specific subtopic tags."
        )

    def ask_follow_ups(self) -> list[Wire]:
        return self._ask_task(
            "Suggest 3-5 relevant follow-up questions or prompts that the user might naturally ask "
            "next in this conversation as a **user**, based on the chat history."
        )

    def ask_queries(self) -> list[Wire]:
        return self._ask_task(
            "Analyze the chat history to determine the necessity of generating search queries, in "
            "the given language."
        )

    def ask_completion(self, text: str) -> list[Wire]:
        task = (
            "### Task:\nYou are an autocompletion system. Continue the text in `<text>` based on "
            f"the **completion type** in `<type>`.\n<type>General</type>\n<text>{text}</text>"
        )
        return [{"role": "user", "content": task}]

    def _ask_task(self, task: str) -> list[Wire]:
        history = self._write_history({"user": "USER", "assistant": "ASSISTANT"})
        text = (
            f"### Task:\n{task}\n### Guidelines:\n- Use the chat's primary language.\n### Output:\n"
            f"JSON\n### Chat History:\n<chat_history>\n{history}\n</chat_history>"
        )
        return [{"role": "user", "content": text}]


class LibreChatClient(AssistantClient):
    """LibreChat, with its tasks."""

    def ask_title(self) -> list[Wire]:
        history = self._write_history({"user": "User", "assistant": "AI"})
        text = (
            "Provide a concise, 5-word-or-less title for the conversation, using title case "
            f"conventions. Only return the title itself.\n\nConversation:\n{history}"
        )
        return [{"role": "user", "content": text}]

    def ask_structured_title(self) -> list[Wire]:
        history = self._write_history({"user": "User", "assistant": "AI"})
        text = (
            "Analyze this conversation and provide:\n1. The detected language of the conversation\n"
            "2. A concise title in the detected language (5 words or less, no punctuation or "
            f"quotation)\n\n{history}"
        )
        return [{"role": "user", "content": text}]

    def ask_summary(self) -> list[Wire]:
        history = self._write_history({"user": "User", "assistant": "AI"})
        text = (
            "Summarize the conversation by integrating new lines into the current summary.\n\n"
            f"Current summary:\n\nNew lines:\n{history}\n\nNew summary:"
        )
        return [{"role": "user", "content": text}]
