from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.http.schemas import convert_list


class Line(msgspec.Struct):
    seq: int


def test_a_long_list_is_converted_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    convert = msgspec.convert

    def convert_and_count(values: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(len(values))
        return convert(values, *rest, **named)

    monkeypatch.setattr(msgspec, "convert", convert_and_count)
    lines = convert_list([{"seq": number} for number in range(100_000)], Line)

    assert [line.seq for line in lines] == list(range(100_000))
    assert max(sizes) <= 1_000


@pytest.mark.parametrize("number", [0, 499, 500, 12_345])
def test_an_item_of_another_kind_is_named_by_its_place_in_the_whole_list(number: int) -> None:
    values: list[Any] = [{"seq": 1}] * 20_000
    values[number] = {"seq": "one"}

    with pytest.raises(msgspec.ValidationError) as raised:
        convert_list(values, Line, at="$.lines")

    assert str(raised.value) == f"Expected `int`, got `str` - at `$.lines[{number}].seq`"


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `array`, got `object`"):
        convert_list({}, Line)
