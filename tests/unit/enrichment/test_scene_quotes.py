"""A quotation stands in a line word for word, or it is none."""

from __future__ import annotations

import pytest

from backend.enrichment.tasks.scene_changes import find_line

LINES = [
    "#1 Jake: *I lean in.* “Forty crowns — by the new moon, Holt’s or mine.”",
    "#2 Mara: It is called\n    the Drowned   Bell… ‹b>\u00a0they say.",
    "#3 Ines: 「鐘は沈んだ」と彼は言った。",
]


@pytest.mark.parametrize(
    ("quote", "at"),
    [
        ('"Forty crowns - by the new moon, Holt\'s or mine."', 0),
        ("Forty crowns — by the new moon", 0),
        ("I lean in.", 0),
        ("It is called the Drowned Bell... <b> they say.", 1),
        ("鐘は沈んだ", 2),
        ("Forty crowns by the new moon", None),
        ("forty crowns — by the new moon", None),
        ("they say. 「鐘は沈んだ」", None),
        ("Fifty crowns", None),
        ("", None),
        (' "\u200b" ', None),
    ],
)
def test_it_is_found_where_it_stands(quote: str, at: int | None) -> None:
    assert find_line(LINES, quote) == at
