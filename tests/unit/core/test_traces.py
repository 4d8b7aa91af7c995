"""Tests of the W3C header `traceparent`. The valid values are of the specification."""

from __future__ import annotations

import re

import pytest

from backend.core.traces import Trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", "01"),
        (f"00-{TRACE}-{SPAN}-00", "00"),
        (f"00-{TRACE}-{SPAN}-ff", "01"),  # unknown flags are dropped
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", "01"),
    ],
)
def test_a_trace_goes_on_in_a_new_span(header: str, flags: str) -> None:
    trace = parse_traceparent(header)
    assert trace is not None
    assert trace == Trace(TRACE, flags)
    assert re.fullmatch(rf"00-{TRACE}-(?!{SPAN})[0-9a-f]{{16}}-{flags}", trace.make_header())


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 1_000,
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_an_invalid_header_starts_nothing(header: str) -> None:
    assert parse_traceparent(header) is None
