"""Code in a text that is still being written."""

from __future__ import annotations

import pytest

from backend.core.code_spans import CodeSpans


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("text", "in_fence", "in_code"),
    [
        ("plain", False, False),
        ("a `b", False, True),
        ("a `b` c", False, False),
        ("a ``b ` c", False, True),
        ("a ``b ` c`` d", False, False),
        ("a `b\nc", False, False),
        ("```\nx", True, True),
        ("```py\nx\n```\ny", False, False),
        ("````\n```\nx", True, True),
        ("  ```\nx", True, True),
        ("a ```b", False, True),
        ("```\na `b", True, True),
    ],
)
def test_code_begins_and_ends_as_markdown_has_it(
    text: str, in_fence: bool, in_code: bool, cut: bool
) -> None:
    spans = CodeSpans()
    for part in text if cut else [text]:
        spans.add(part)

    assert (spans.ends_in_fence(), spans.ends_in_code()) == (in_fence, in_code)
