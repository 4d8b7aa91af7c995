"""Prompts of plain models: the client's messages and settings in the form of one model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from backend.errors import ValidationError
from backend.generation.catalogue import ToolSupport
from backend.generation.model import (
    ChatModel,
    Prompt,
    PromptMessage,
    RequestOptions,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.sampling import Sampling
from backend.generation.tools.streams import choose_tool_support
from backend.openai_api.contracts import SentMessage

MAX_TOOLS = 128
"""Maximum number of tools of a request. OpenAI has the same limit."""

MAX_EXTRA_BYTES = 16_384
"""Maximum size of the unknown parameters that are passed on, as JSON."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_MAX_PREFILL = 4_000
"""Maximum number of characters of a `start_reply_with`."""

_WIRE_NAMES: Mapping[str, str] = {
    "max_output_tokens": "max_tokens",
    "start_reply_with": "prefill",
    "json_schema": "response_format",
}
"""The API's names of settings that have another one here."""


class ToolMessagesError(ValidationError):
    """A tool message and a tool call do not belong together."""

    slug, title = "tool-messages", "Tool calls and tool messages do not match"


class ToolsError(ValidationError):
    """The tools, or the choice of one, are not valid."""

    slug, title = "tools-not-valid", "Invalid tools"


class ExtraParametersError(ValidationError):
    """The unknown parameters are too large to pass on."""

    slug, title = "extra-parameters-too-large", "Too many unknown parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCall:
    """One request to a model.

    Attributes:
        way: The way to request tool calls.
        left_out: The parameters that are not sent, by the names of the API.
    """

    model: ChatModel
    prompt: Prompt
    sampling: Sampling
    tools: Sequence[Tool]
    way: ToolSupport
    options: RequestOptions
    left_out: Sequence[str]

    @property
    def prefill(self) -> str:
        """The beginning of the reply, which the client has sent and does not expect again."""
        return self.sampling.start_reply_with or ""


def build_call(
    model: ChatModel,
    messages: Sequence[SentMessage],
    sampling: Sampling,
    *,
    tools: Sequence[Tool],
    options: RequestOptions,
) -> PlainCall:
    """Return the request to a model, without parameters that the model does not support.

    Raises `ToolMessagesError`, `ToolsError`, `ExtraParametersError`.
    """
    check_tools(tools, options.tool_choice)
    if len(msgspec.json.encode(options.extra)) > MAX_EXTRA_BYTES:
        raise ExtraParametersError(f"They may have {MAX_EXTRA_BYTES:,} bytes as JSON.")
    spec, left_out = model.spec, list[str]()
    built = build_messages(messages)
    way: ToolSupport = choose_tool_support(model) if tools else "native"
    if way != "native":
        tools, options = _adapt_tools(tools, options, way, left_out)
    is_words = not tools and options.form is None
    last = built[-1]
    if is_words and last.role == "assistant" and not last.calls and len(built) > 1:
        is_possible = "start_reply_with" in spec.accepts and 0 < len(last.text) <= _MAX_PREFILL
        if is_possible and sampling.start_reply_with is None:
            sampling = msgspec.structs.replace(sampling, start_reply_with=last.text)
            built.pop()
    supported = spec.accepts | spec.refused
    absent = [name for name in sampling.set_fields() if name not in supported]
    left_out += name_settings(absent)
    sampling = msgspec.structs.replace(sampling, **dict.fromkeys(absent))
    return PlainCall(
        model=model,
        prompt=Prompt(built),
        sampling=sampling,
        tools=tools,
        way=way,
        options=options,
        left_out=left_out,
    )


def name_settings(settings: Sequence[str]) -> list[str]:
    """Return the names of settings in the API."""
    return [_WIRE_NAMES.get(name, name) for name in settings]


def _adapt_tools(
    tools: Sequence[Tool], options: RequestOptions, way: ToolSupport, left_out: list[str]
) -> tuple[Sequence[Tool], RequestOptions]:
    """Return the tools for a model that writes calls into its text, or calls none."""
    choice = options.tool_choice
    if way == "none":
        left_out.append("tools")
    if choice.mode == "none" or way == "none":
        return (), replace(options, tool_choice=ToolChoice())
    if choice.mode == "required":
        left_out.append("tool_choice")
    if options.form is not None:
        left_out.append("response_format")
    offered = [tool for tool in tools if choice.mode != "named" or tool.name == choice.name]
    return offered, replace(options, tool_choice=ToolChoice(), form=None)


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raise `ToolsError` if the tools or the choice are not valid."""
    names = [tool.name for tool in tools]
    if len(names) > MAX_TOOLS:
        raise ToolsError(f"A request may have {MAX_TOOLS} tools. This one has {len(names):,}.")
    if invalid := next((name for name in names if not _TOOL_NAME.fullmatch(name)), None):
        raise ToolsError(
            f"{invalid[:80]!r} is not a name of a tool. Use 1 to 64 letters, digits, _ and -."
        )
    if len(set(names)) < len(names):
        raise ToolsError("Two tools have the same name.")
    if choice.mode == "named" and choice.name not in names:
        raise ToolsError(f"tool_choice: there is no tool {choice.name[:80]!r}.")
    if choice.mode == "required" and not names:
        raise ToolsError("tool_choice: `required` needs tools.")


def build_messages(sent: Sequence[SentMessage]) -> list[PromptMessage]:
    """Return the messages of a prompt. Results of tools are put to the calls that they answer.

    Raises `ToolMessagesError` if a result has no call, or a call no result.
    """
    if not sent:
        raise ValidationError("messages: send at least one message.")
    built: list[PromptMessage] = []
    calls: tuple[ToolCall, ...] = ()
    results: dict[str, Any] = {}
    for place, message in enumerate(sent):
        if message.role == "tool":
            known = [call.id for call in calls]
            if message.call_id not in known or message.call_id in results:
                raise ToolMessagesError(
                    f"messages[{place}]: tool_call_id must be one of a call in the assistant's "
                    "message before, and no other tool message may have it."
                )
            results[message.call_id] = message.text
            continue
        _finish_calls(built, calls, results, place)
        calls, results = message.calls, {}
        built.append(
            PromptMessage(
                message.role,
                message.text,
                images=message.images,
                name=message.name,
                calls=message.calls,
            )
        )
    _finish_calls(built, calls, results, len(sent))
    return built


def _finish_calls(
    built: list[PromptMessage],
    calls: Sequence[ToolCall],
    results: Mapping[str, Any],
    place: int,
) -> None:
    """Add the results to the last message."""
    if not calls:
        return
    if missing := next((call.id for call in calls if call.id not in results), None):
        raise ToolMessagesError(
            f"messages[{place - 1}]: no tool message answers the call {missing[:80]!r}."
        )
    found = tuple(results[call.id] for call in calls)
    built[-1] = msgspec.structs.replace(built[-1], results=found)
