"""The codes, sentences and numbers in the error body of a provider.

Their shapes differ: OpenAI uses an object in `error`, Google the same in a list, FastAPI `detail`,
Ollama a text, and routers quote another provider's body as text in `metadata.raw`. Only known
members are read, because others quote the prompt (`input`, `flagged_input`). Texts are truncated
before they are searched.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from backend.generation.json_text import mapping, sequence

MAX_SENTENCE_CHARS = 2_000
"""Maximum number of read characters of a sentence. The longest known one has 700."""

MAX_QUOTE_CHARS = 300

REMOVED = "[removed]"
"""Replaces keys, and texts that look like keys, in quotations."""

_MAX_BODY_CHARS = 20_000
_MAX_NODES = 200
_MAX_CODES = 30
_MAX_SENTENCES = 4
_MAX_TEXTS = 12
"""Maximum number of read texts. Some are empty, or JSON."""

_NESTED = (
    *("error", "errors", "detail", "details", "message", "metadata", "raw", "innererror"),
    *("content_filter_result", "data", "response", "provider_specific_fields", "fieldViolations"),
)
_CODES = ("code", "type", "status", "reason", "error_type", "param", "field", "error")
_SENTENCES = ("message", "msg", "detail", "error", "error_description", "raw", "description")
_WAITS = ("retryDelay", "retry_after", "retry_after_seconds", "estimated_time")
_NUMBERS = ("n_ctx", "n_prompt_tokens")
_FILTERS = ("hate", "self_harm", "sexual", "violence", "jailbreak")
_REASONS = ("reasons", "flagged_categories")

_CODE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.\[\]-]{1,63}")
_FIRST_ERROR_STATUS, _LAST_STATUS = 300, 599

_EMPTY_PHRASES = frozenset({"", "error", "provider returned error", "upstream error", "api error"})
"""Sentences without content, which routers send before the provider's sentence."""

_TITLE = re.compile(r"<(?:title|h1)(?:\s[^>]{0,100})?>([^<]{1,300})", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,300}>")
_MAX_SIMPLE_PAGE = 1_000
_CUT_MESSAGE = re.compile(r'"(?:message|detail|msg)"\s{0,5}:\s{0,5}"((?:[^"\\]|\\.){1,1000})')
_PAGE_STARTS = ("<!doctype html", "<html", "<head", "<body", "<?xml", "<!--")

_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})

_KEY_LIKE = re.compile(
    r"""
    \bauthorization["']?\s{0,3}[=:]\s{0,3}["']?(?:bearer\s{1,3}|basic\s{1,3})?[^\s"',;]{4,}
    | \b(?:bearer|basic)\s{1,3}(?=[^\s"',;]{0,200}[0-9])[^\s"',;]{8,}
    | \b(?:(?:api|access|secret|x-api)[ _-]?(?:key|token)|secret|password)(?:\s{1,3}provided)?
      ["']?\s{0,3}[=:]\s{0,3}["']?[^\s"',;)}\]]{4,}
    | \b(?:key|token)=[^\s"'&]{4,}
    | \b(?:sk|pk|rk|gsk|xai|hf|r8|nvapi|tgp|fw|csk|pplx|ghp|tk)[-_](?=[\w*.…-]{0,80}[0-9*…])
      [\w*.…-]{6,}
    | \bAIza[\w*-]{10,} | \bAKIA[A-Z0-9]{12,} | \beyJ[\w-]{8,}(?:\.[\w-]{1,2000}){0,2}
    | (?<![\w-])[\w-]{0,60}\*{3}[\w*-]{0,200}
    | \b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MIN_TOKEN_CHARS = 20
_LONG_RUN = re.compile(rf"[A-Za-z0-9+/=_]{{{_MIN_TOKEN_CHARS},}}")
_SHORT_SECRET = 4
_SECRET_PART = 8


@dataclass(frozen=True, slots=True)
class ProviderFault:
    """The known members of an error body.

    Attributes:
        codes: Distinct code words, such as `insufficient_quota` or the name of a setting.
        sentences: Texts for people, the outermost first. They may quote the prompt and the key.
        status: An HTTP status in the body.
        numbers: `n_ctx` and `n_prompt_tokens` of llama.cpp.
        waits: Waiting times in any notation.
        reasons: Categories of a content filter.
        is_error: True if the body has an error member.
        is_page: True if the body is a web page.
    """

    codes: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    status: int | None = None
    numbers: tuple[tuple[str, int], ...] = ()
    waits: tuple[object, ...] = ()
    reasons: tuple[str, ...] = ()
    is_error: bool = False
    is_page: bool = False

    @property
    def text(self) -> str:
        """All sentences in one lowercase line."""
        return " ".join(self.sentences).lower()

    def quote(self, secrets: Iterable[str] = ()) -> str:
        """Return the first useful sentence, without keys and at most `MAX_QUOTE_CHARS` long."""
        told = (each for each in self.sentences if each.lower().strip(" .") not in _EMPTY_PHRASES)
        words = remove_keys(next(told, next(iter(self.sentences), "")), secrets)
        return words if len(words) <= MAX_QUOTE_CHARS else words[: MAX_QUOTE_CHARS - 1] + "…"


def read_fault(body: object, content_type: str = "") -> ProviderFault:
    """Read an error body: parsed JSON of any shape, a text, or None."""
    if isinstance(body, bytes):
        body = body[: 4 * _MAX_BODY_CHARS].decode(errors="replace")
    if isinstance(body, str):
        body = body[:_MAX_BODY_CHARS]
        is_html = content_type.startswith("text/html") and not body.isspace()
        if body and (is_html or _is_page(body)):
            return ProviderFault(sentences=_clean(_find_page_title(body)), is_page=True)
        if cut := _CUT_MESSAGE.search(body):
            with suppress(ValueError):  # an invalid escape
                body = {"message": json.loads(f'"{cut[1]}"'), "code": _find_codes(body)}
    return _Collector().collect(body)


def find_code_words(*values: object, secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the distinct code words among `values`, without sentences and keys."""
    keys = [secret for secret in secrets if secret]
    return tuple(
        dict.fromkeys(
            value
            for value in values
            if isinstance(value, str)
            and _CODE_WORD.fullmatch(value)
            and not any(key in value for key in keys)
            and REMOVED not in remove_keys(value, ())
        )
    )


def remove_keys(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets, and texts that look like keys or tokens."""
    for secret in sorted(_list_secret_forms(secrets), key=len, reverse=True):
        pattern = re.escape(secret)
        if len(secret) < _SHORT_SECRET:  # it may be a part of other words
            pattern = rf"(?<!\w){pattern}(?!\w)"
        text = re.sub(pattern, REMOVED, text, flags=re.IGNORECASE)
    text = _KEY_LIKE.sub(REMOVED, text)
    return _LONG_RUN.sub(lambda run: REMOVED if _is_random(run[0]) else run[0], text)


def _list_secret_forms(secrets: Iterable[str]) -> set[str]:
    """Return the forms in which secrets may be quoted: whole, by word, and in a URL."""
    forms: set[str] = set()
    for secret in filter(None, map(str.strip, secrets)):
        forms |= {secret, quote(secret, safe="")}
        forms |= {part for part in secret.split() if len(part) >= _SECRET_PART}
    return forms


def _is_random(run: str) -> bool:
    """True if a run of characters is probably a token, not a name."""
    return any(
        len(part) >= _MIN_TOKEN_CHARS and re.search(r"[0-9]", part) and re.search(r"[A-Za-z]", part)
        for part in re.split(r"[_/]", run)
    )


class _Collector:
    """Collects the members of a body, level by level, so that outer sentences come first."""

    def __init__(self) -> None:
        self._codes: dict[str, None] = {}
        self._sentences: dict[str, None] = {}
        self._reasons: dict[str, None] = {}
        self._numbers: dict[str, int] = {}
        self._waits: list[object] = []
        self._status: int | None = None
        self._texts = 0

    def collect(self, body: object) -> ProviderFault:
        waiting, seen = deque([body]), 0
        while waiting and seen < _MAX_NODES:
            seen += 1
            node = waiting.popleft()
            if isinstance(node, Mapping):
                waiting.extend(self._read(cast("Mapping[str, Any]", node)))
            elif isinstance(node, list):
                waiting.extend(sequence(cast("object", node))[:_MAX_NODES])
            elif isinstance(node, str):
                waiting.extend(self._read_text(node))
        return ProviderFault(
            codes=tuple(self._codes)[:_MAX_CODES],
            sentences=tuple(self._sentences),
            status=self._status,
            numbers=tuple(self._numbers.items()),
            waits=tuple(self._waits),
            reasons=tuple(self._reasons),
            is_error=_is_error(body),
        )

    def _read(self, members: Mapping[str, Any]) -> Iterator[object]:
        """Read the known members of an object, and yield the nested ones."""
        for name in _CODES:
            value = members.get(name)
            for each in sequence(value)[:_MAX_CODES] or [value]:
                self._read_code(name, each)
        for name in _NUMBERS:
            if type(number := members.get(name)) is int:
                self._numbers.setdefault(name, number)
        self._waits += [members[name] for name in _WAITS if name in members]
        for reason in _find_filter_reasons(members):
            self._reasons[reason] = None
        for name in dict.fromkeys((*_SENTENCES, *_NESTED)):
            value = members.get(name)
            is_text = isinstance(value, str) and (name in _SENTENCES or value.startswith("{"))
            if is_text or isinstance(value, Mapping | list):
                yield cast("object", value)

    def _read_code(self, name: str, value: object) -> None:
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value[:9])
        if isinstance(value, int) and name in {"code", "status"}:
            if _FIRST_ERROR_STATUS <= value <= _LAST_STATUS and self._status is None:
                self._status = value
        elif isinstance(value, str) and value != "error" and _CODE_WORD.fullmatch(value):
            self._codes[value] = None

    def _read_text(self, text: str) -> Iterator[object]:
        """Add a sentence. If the text is JSON, yield its value instead."""
        self._texts += 1
        if self._texts > _MAX_TEXTS:
            return
        if text.lstrip()[:1] in {"{", "["}:
            with suppress(ValueError, RecursionError):
                yield json.loads(text[:_MAX_BODY_CHARS])
                return
        if len(self._sentences) < _MAX_SENTENCES:
            self._sentences |= dict.fromkeys(_clean(text[: 2 * MAX_SENTENCE_CHARS]))


def _find_filter_reasons(members: Mapping[str, Any]) -> Iterator[str]:
    """Yield OpenRouter's `reasons` and Azure's active filters."""
    for name in _REASONS:
        for reason in sequence(members.get(name))[:_MAX_CODES]:
            if isinstance(reason, str):
                yield reason[:64]
    for name in _FILTERS:
        if mapping(members.get(name)).get("filtered"):
            yield name


def _is_error(body: object) -> bool:
    members = mapping(next(iter(sequence(body)), body))
    return bool(members.get("error") or members.get("detail") or members.get("object") == "error")


def _is_page(text: str) -> bool:
    return text.lstrip()[:20].lower().startswith(_PAGE_STARTS)


def _find_page_title(page: str) -> str:
    """Return the title of a web page, or the text of a simple page without a title."""
    if title := _TITLE.search(page):
        return title[1]
    is_simple = len(page) < _MAX_SIMPLE_PAGE and "<script" not in page and "<style" not in page
    return _TAG.sub(" ", page) if is_simple else ""


def _find_codes(text: str) -> list[str]:
    """Return the code words of an incomplete JSON text."""
    return re.findall(r'"(?:code|type|status|reason)"\s{0,5}:\s{0,5}"([^"\\]{1,64})"', text)


def _clean(text: str) -> tuple[str, ...]:
    """Return the text as one line without control characters, in a tuple that may be empty.

    The last word of a truncated text is removed, because half a key would not be recognised.
    """
    text = _ESCAPE.sub("", text)
    seen = "".join(
        " " if each.isspace() else each
        for each in text
        if each.isspace() or unicodedata.category(each) not in _UNSEEN_CATEGORIES
    )
    line = " ".join(seen.split())
    if len(line) > MAX_SENTENCE_CHARS:
        line = line[:MAX_SENTENCE_CHARS].rpartition(" ")[0]
    return (line,) if line else ()
