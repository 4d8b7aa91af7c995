"""The prompt of a turn from the list of a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backend.accounts.profile.settings import ClientSettings
from backend.generation.model import PromptMessage
from backend.openai_api.contracts import Decision, SentConversation
from backend.openai_api.options import ClientOptions
from backend.openai_api.turn_reply import TurnStatus
from backend.openai_api.wire import ChatCompletionRequest
from backend.turns.prompt.client import ClientMessage, ClientPrompt


def build_client_prompt(
    request: ChatCompletionRequest,
    reading: SentConversation,
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
    places = list(range(len(request.messages)))
    # The beginning of the reply stays in its message if the client has put everything into one.
    if decision.prefill and request.messages[reading.lines[-1].place].role == "assistant":
        places.remove(reading.lines[-1].place)
    messages, line = _list_messages(
        request, places, positions, answered=_find_answered(reading, decision)
    )
    return _make_prompt(
        request,
        messages,
        line,
        prefill=decision.prefill,
        window_start=decision.placement.window_start,
        options=options,
        settings=settings,
    )


def build_rest_prompt(
    request: ChatCompletionRequest,
    turn: TurnStatus,
    positions: Mapping[int, int],
    *,
    continues: bool,
    window_start: int | None,
    options: ClientOptions,
    settings: ClientSettings,
) -> ClientPrompt | None:
    """Return the client's messages for the rest of a turn's reply: those before the reply.

    If the turn has ended and another one `continues` its reply, the stored text of the reply
    follows them. None if the client sends none of the messages before the reply.

    `window_start` is that of the placement. For the other arguments, see `build_client_prompt`.
    """
    before = [at for at, position in positions.items() if position < (turn.position or 0)]
    if not before:
        return None
    last = max(before)
    answered = last if request.messages[last].role == "user" and not continues else None
    messages, line = _list_messages(request, range(last + 1), positions, answered=answered)
    if continues:
        reply = PromptMessage("assistant", turn.text)
        messages.append(ClientMessage(message=reply, position=turn.position))
    return _make_prompt(
        request, messages, line, window_start=window_start, options=options, settings=settings
    )


def _list_messages(
    request: ChatCompletionRequest,
    places: Iterable[int],
    positions: Mapping[int, int],
    *,
    answered: int | None,
) -> tuple[list[ClientMessage], int | None]:
    """Return the messages at some places of the list, and the index of the answered one."""
    messages: list[ClientMessage] = []
    line: int | None = None
    for at in places:
        sent = request.messages[at]
        if sent.role == "tool":
            continue
        if at == answered:
            line = len(messages)
        message = PromptMessage(sent.role, sent.text, images=sent.images, name=sent.name)
        messages.append(ClientMessage(message=message, position=positions.get(at)))
    return messages, line


def _make_prompt(
    request: ChatCompletionRequest,
    messages: Sequence[ClientMessage],
    line: int | None,
    *,
    prefill: str = "",
    window_start: int | None,
    options: ClientOptions,
    settings: ClientSettings,
) -> ClientPrompt:
    return ClientPrompt(
        messages=messages,
        line=line,
        prefill=prefill,
        placement=settings.system_messages,
        window_start=window_start,
        max_context=options.max_context,
        sampling=request.sampling,
        uses_memory=options.uses_memory,
    )


def _find_answered(reading: SentConversation, decision: Decision) -> int | None:
    """Return the place of the user's line that the turn answers.

    None if it continues a reply, or if another member replies to the last reply.
    """
    if decision.kind not in {"turn", "swipe"}:
        return None
    lines = list(reading.lines)
    if decision.prefill and lines and lines[-1].role == "assistant":
        lines.pop()
    return lines[-1].place if lines and lines[-1].role == "user" else None
