"""The prompt of a turn from the list of a client."""

from __future__ import annotations

from collections.abc import Mapping

from backend.accounts.profile.settings import ClientSettings
from backend.generation.model import PromptMessage
from backend.openai_api.contracts import Decision, Reading
from backend.openai_api.options import ClientOptions
from backend.openai_api.wire import ChatCompletionRequest
from backend.turns.prompt.client import ClientMessage, ClientPrompt


def build_client_prompt(
    request: ChatCompletionRequest,
    reading: Reading,
    decision: Decision,
    positions: Mapping[int, int],
    *,
    options: ClientOptions,
    settings: ClientSettings,
) -> ClientPrompt:
    """Return the client's messages with the positions of the stored ones.

    Args:
        request: The request.
        reading: The request's list as a conversation.
        decision: The decision about it.
        positions: The positions on the stored path, by the place of the message in the list.
        options: The headers of the request.
        settings: The account's settings of the endpoint.

    Tool messages are left out, because a character has no tools of a client.
    """
    answered = _find_answered(reading, decision)
    last_reply = max(
        (at for at, message in enumerate(request.messages) if message.role == "assistant"),
        default=None,
    )
    messages: list[ClientMessage] = []
    line: int | None = None
    for at, sent in enumerate(request.messages):
        if sent.role == "tool" or (decision.prefill and at == last_reply):
            continue
        if at == answered:
            line = len(messages)
        message = PromptMessage(sent.role, sent.text, images=sent.images, name=sent.name)
        messages.append(ClientMessage(message=message, position=positions.get(at)))
    return ClientPrompt(
        messages=messages,
        line=line,
        prefill=decision.prefill,
        placement=settings.system_messages,
        window_start=decision.placement.window_start,
        max_context=options.max_context,
        sampling=request.sampling,
        uses_memory=options.uses_memory,
    )


def _find_answered(reading: Reading, decision: Decision) -> int | None:
    """Return the place of the user's line that the turn answers.

    None if it continues a reply, or if another member replies to the last reply.
    """
    if decision.kind not in {"turn", "swipe"}:
        return None
    lines = list(reading.lines)
    if decision.prefill and lines and lines[-1].role == "assistant":
        lines.pop()
    return lines[-1].place if lines and lines[-1].role == "user" else None
