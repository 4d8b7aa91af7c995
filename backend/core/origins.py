"""Origins of web pages: scheme, host and port."""

from __future__ import annotations

from urllib.parse import urlsplit

ANY_ORIGIN = "*"

_PORTS = {"http": 80, "https": 443}


def parse_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL. Raises `ValueError` for an invalid host or port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def is_same_origin(one: str, other: str) -> bool:
    try:
        return parse_origin(one) == parse_origin(other)
    except ValueError:  # no URL at all
        return False


def check_origin(text: str) -> str:
    """Return an origin of the settings, or `*`. Raises `ValueError` for other texts."""
    if text == ANY_ORIGIN:
        return text
    scheme, host, _ = parse_origin(text)
    parts = urlsplit(text)
    has_more = parts.path or parts.query or parts.fragment or "@" in text or "*" in text
    if not (scheme and host) or has_more:
        raise ValueError(
            f"{text!r} is not an origin: write a scheme and a host, such as https://app.example, "
            "or * for all"
        )
    return text
