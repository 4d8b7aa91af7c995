"""What a provider may be set to, besides what its fields' types say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backend.errors import ValidationError
from backend.llm.models import (
    InstallationProvider,
    Provider,
    ProviderConfig,
    ProviderFields,
)

MAX_BODY_BYTES = 32_000
MAX_BYTES = 200_000
"""Bytes of JSON of what a user sets of one provider."""

LEAST_HINTED = 16
"""Characters of a secret from which on its last four may be shown."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_KEY = re.compile(r"[\x21-\x7e]+")

_OURS = frozenset(
    {
        *("host", "authorization", "x-api-key", "x-goog-api-key", "cookie", "anthropic-version"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-type", "content-length", "content-encoding", "accept", "accept-encoding"),
    }
)
"""Headers that a client sets by itself, and those that keys go in: they are sealed as keys are."""


def checked(row: Provider | InstallationProvider, config: ProviderConfig) -> ProviderConfig:
    """The config as it is stored. Raises `ValidationError` that names the field."""
    key = (config.api_key or "").strip() or None
    url = (config.base_url or "").strip().rstrip("/") or None
    if key is not None and not _KEY.fullmatch(key):
        raise ValidationError(
            "api_key: it contains characters that keys cannot have. Copy it again."
        )
    if url is None and row.kind == "openai":
        raise ValidationError("base_url: required for this kind of provider.")
    if url is not None:
        _check_url(url)
    if config.embedding_model and row.kind == "anthropic":
        raise ValidationError("embedding_model: Anthropic has no embedding models.")
    _check_headers(config.extra_headers)
    names = [model.name for model in config.models]
    if len(set(names)) < len(names):
        raise ValidationError("models: each name must be unique.")
    if len(msgspec.json.encode(config.extra_body)) > MAX_BODY_BYTES:
        raise ValidationError(f"extra_body: at most {MAX_BODY_BYTES:,} bytes of JSON are allowed.")
    own = {name: getattr(config, name) for name in ProviderFields.__struct_fields__}
    if len(msgspec.json.encode(own)) > MAX_BYTES:
        raise ValidationError(f"A provider can have at most {MAX_BYTES:,} bytes of JSON.")
    return replace(config, name=config.name or row.slug, api_key=key, base_url=url)


def check_origin(before: ProviderConfig, after: ProviderConfig, given: Mapping[str, Any]) -> None:
    """Raise `ValidationError` where secrets would go to another server than they were given for.

    Otherwise somebody who finds a session open could send them to their own server. `given` is the
    patch between the two: what it holds was entered for the new address.
    """
    if _origin(before.base_url) == _origin(after.base_url):
        return
    if after.api_key is not None and "api_key" not in given:
        raise ValidationError(
            "api_key: the key was entered for another server's address. Enter "
            "the key again, or remove it."
        )
    kept = after.extra_headers.keys() - (given.get("extra_headers") or {}).keys()
    if kept:
        raise ValidationError(
            f"extra_headers: {min(kept)} was entered for another server's "
            "address. Enter it again, or remove it."
        )


def _origin(url: str | None) -> tuple[str, str | None, int | None] | None:
    if not url:
        return None
    parts = urlsplit(url.strip())
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


def hint(secret: str | None) -> str | None:
    """The last four characters of a secret that is long enough not to be told by them."""
    return secret[-4:] if secret and len(secret) >= LEAST_HINTED else None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    else:
        is_usable = is_usable and not (parts.query or parts.fragment) and "@" not in parts.netloc
    if not is_usable or not _KEY.fullmatch(url):
        raise ValidationError(
            "base_url: enter an address such as https://example.com/v1, without a user name, a "
            "password or a query."
        )


def _check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _PRINTABLE.fullmatch(value):
            raise ValidationError("extra_headers: a name or a value contains invalid characters.")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise ValidationError(f"extra_headers: {name} cannot be set.")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValidationError("extra_headers: each name must be unique.")
