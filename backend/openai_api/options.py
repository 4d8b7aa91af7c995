"""The headers by which a client controls a request, and those of OpenAI's SDKs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args
from uuid import UUID

from backend.accounts.profile.activity import describe_client
from backend.openai_api.errors import InvalidParameterError

CHAT_HEADER = "X-Talekeeper-Chat"
STORE_HEADER = "X-Talekeeper-Store"
MEMORY_HEADER = "X-Talekeeper-Memory"
MAX_CONTEXT_HEADER = "X-Talekeeper-Max-Context"

MESSAGE_HEADER = "X-Talekeeper-Message"
"""Response: the id of the stored reply."""
IGNORED_HEADER = "X-Talekeeper-Ignored"
"""Response: the names of the members of the body that had no effect."""

MIN_CONTEXT, MAX_CONTEXT = 256, 10_000_000

_RETRY_HEADER = "x-stainless-retry-count"
_CHAT_PREFIX = "chat:"
_MAX_AGENT_CHARACTERS = 200
_MAX_NAMES = 20
_MAX_NAME_CHARACTERS = 60

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_NUMBER = re.compile(r"[0-9]{1,9}")

StoreOption = Literal["auto", "always", "never"]

_STORE_OPTIONS: Mapping[str, StoreOption] = {each: each for each in get_args(StoreOption)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a request.

    Attributes:
        chat_id: The chat that the request belongs to. None to find it.
        store: Store the conversation, or not. `auto` lets Talekeeper decide.
        uses_memory: False to add nothing to the client's prompt.
        max_context: The client's limit for prompt and reply together, in tokens.
        retry_count: The number of times that an SDK has sent this request before.
        client: The program, by its `User-Agent`.
    """

    chat_id: UUID | None = None
    store: StoreOption = "auto"
    uses_memory: bool = True
    max_context: int | None = None
    retry_count: int = 0
    client: str = ""


def parse_options(headers: Mapping[str, str]) -> ClientOptions:
    """Parse the headers of a request. Raises `InvalidParameterError`."""
    store = _STORE_OPTIONS.get(_read(headers, STORE_HEADER) or "auto")
    if store is None:
        raise InvalidParameterError(STORE_HEADER, "Send `auto`, `always` or `never`.")
    memory = _read(headers, MEMORY_HEADER) or "on"
    if memory not in {"on", "off"}:
        raise InvalidParameterError(MEMORY_HEADER, "Send `on` or `off`.")
    return ClientOptions(
        chat_id=_read_chat(_read(headers, CHAT_HEADER)),
        store=store,
        uses_memory=memory == "on",
        max_context=_read_max_context(_read(headers, MAX_CONTEXT_HEADER)),
        retry_count=_read_number(_read(headers, _RETRY_HEADER)) or 0,
        client=describe_client(headers.get("user-agent", "")[:_MAX_AGENT_CHARACTERS]),
    )


def list_names(names: Iterable[str]) -> str:
    """Return the names of members as the value of a header, at most 20 of them."""
    shown = islice(names, _MAX_NAMES)
    return ", ".join(_UNSAFE.sub("?", name[:_MAX_NAME_CHARACTERS]) for name in shown)


def _read(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name.lower(), "").strip().lower()


def _read_number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _read_chat(text: str) -> UUID | None:
    if not text:
        return None
    try:
        return UUID(text.removeprefix(_CHAT_PREFIX))
    except ValueError:
        raise InvalidParameterError(CHAT_HEADER, "Send the id of a chat.") from None


def _read_max_context(text: str) -> int | None:
    if not text:
        return None
    tokens = _read_number(text) or 0
    if not MIN_CONTEXT <= tokens <= MAX_CONTEXT:
        raise InvalidParameterError(
            MAX_CONTEXT_HEADER, f"Send a number of tokens from {MIN_CONTEXT} to {MAX_CONTEXT:,}."
        )
    return tokens
