"""Dates of messages, in each of the forms that chat programs write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random
from zoneinfo import ZoneInfo

import pytest

from backend.transfer.formats.send_dates import parse_send_date

HELSINKI = ZoneInfo("Europe/Helsinki")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("June 19, 2023 2:20pm", "2023-06-19T11:20:00"),
        ("June 19, 2023 12:05am", "2023-06-18T21:05:00"),
        ("June 19, 2023 12:05pm", "2023-06-19T09:05:00"),
        ("June 19, 2023 14:20pm", "2023-06-19T11:20:00"),
        ("december 1, 2023 2:20 AM", "2023-12-01T00:20:00"),
        ("Jun 19, 2023 14:20", "2023-06-19T11:20:00"),
        ("Jun. 19, 2023, 14:20:05", "2023-06-19T11:20:05"),
        ("January 1, 1970 3:00am", "1970-01-01T01:00:00"),
        ("December 31, 2099 11:59pm", "2099-12-31T21:59:00"),
        ("2023-06-19@14h20m05s", "2023-06-19T11:20:05"),
        ("2023-6-19 @14h 20m 5s 123ms", "2023-06-19T11:20:05.123000"),
        ("2023-6-9@4h20m5s7ms", "2023-06-09T01:20:05.007000"),
        ("2023-06-19T14:20:05.123Z", "2023-06-19T14:20:05.123000"),
        ("2023-06-19T14:20:05+05:30", "2023-06-19T08:50:05"),
        ("2023-06-19T14:20:05", "2023-06-19T11:20:05"),
        ("2023-06-19 14:20", "2023-06-19T11:20:00"),
        ("2023-06-19", "2023-06-18T21:00:00"),
        (" 2099-01-01T00:00:00Z ", "2099-01-01T00:00:00"),
        (0, "1970-01-01T00:00:00"),
        (1_687_184_405, "2023-06-19T14:20:05"),
        (1_687_184_405_123, "2023-06-19T14:20:05.123000"),
        (1_687_184_405.5, "2023-06-19T14:20:05.500000"),
        ("1687184405123", "2023-06-19T14:20:05.123000"),
        ("1687184405", "2023-06-19T14:20:05"),
        (4_070_908_800, "2099-01-01T00:00:00"),
        (4_070_908_800_000, "2099-01-01T00:00:00"),
    ],
)
def test_every_form_of_a_date_is_read_as_utc(written: object, expected: str) -> None:
    found = parse_send_date(written, zone=HELSINKI)
    assert found is not None
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)
    assert found.utcoffset() == timedelta()


@pytest.mark.parametrize(
    "written",
    [
        None,
        True,
        "",
        "yesterday",
        "Smarch 13, 2023 2:20pm",
        "June 31, 2023 2:20pm",
        "June 19, 2023 2:75pm",
        "2023-13-19@14h20m05s",
        "2023-02-30T10:00:00Z",
        "0001-01-01T00:00:00Z",
        "December 31, 1969 11:59pm",
        "9999-12-31T23:59:59-12:00",
        -1,
        10**30,
        "9" * 16,
        "1" * 100_000,
        "٢٠٢٣-٠٦-١٩",
        float("nan"),
        float("inf"),
        [2023, 6, 19],
        {"date": "2023-06-19"},
        b"2023-06-19",
    ],
)
def test_a_value_that_is_no_date_is_none(written: object) -> None:
    assert parse_send_date(written, zone=UTC) is None


def test_changed_and_cut_dates_raise_nothing() -> None:
    random = Random(7)
    forms = ["June 19, 2023 2:20pm", "2023-6-19 @14h 20m 5s 123ms", "2023-06-19T14:20:05.123+02:00"]
    zone = timezone(timedelta(hours=14))
    for _ in range(3_000):
        letters = list(random.choice(forms))
        for _ in range(random.randrange(1, 4)):
            letters[random.randrange(len(letters))] = random.choice("0929-:@hmsT+Z ,.é٣\x00\ud800")
        text = "".join(letters)[: random.randrange(len(letters) + 1)]
        found = parse_send_date(text, zone=zone)
        assert found is None or found.tzinfo is UTC
