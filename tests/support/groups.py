"""Groups as tests compare them."""

from __future__ import annotations

from collections.abc import Mapping


def name_audience(audience: str | list[str], names: Mapping[str, str]) -> str | list[str]:
    """Return an audience with the names of characters instead of their ids."""
    return audience if isinstance(audience, str) else [names[each] for each in audience]
