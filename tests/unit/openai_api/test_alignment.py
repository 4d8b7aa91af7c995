"""Lines of a client are paired with stored messages, after edits, deletions and insertions."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from backend.chats.text_digests import DIGEST_BYTES, TextDigester
from backend.openai_api.alignment import (
    GapMessage,
    PieceDigests,
    TextProfile,
    Unit,
    find_block,
    pair_digests,
    settle_gap,
    split_lines,
)
from backend.openai_api.contracts import Line
from backend.vault.sealing import Sealer

DIGESTER = TextDigester(Sealer(uuid4(), {1: os.urandom(32)}, user_key=os.urandom(32)))

LONG = "The miller died last winter, and his daughter keeps the wheel turning through the snow."


def encode(letters: str) -> list[bytes]:
    """Return one digest for each letter."""
    return [letter.encode().ljust(DIGEST_BYTES, b".") for letter in letters]


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        ("abc", "abc", "00 11 22"),
        ("cde", "abcde", "02 13 24"),
        ("abxd", "abcd", "00 11 33"),
        ("abd", "abcd", "00 11 23"),
        ("abxcd", "abcd", "00 11 32 43"),
        ("xyz", "abc", ""),
        ("", "abc", ""),
        # Repeated lines are paired next to unique ones.
        ("aAaBa", "aAaBaC", "00 11 22 33 44"),
        ("Ba", "aAaBaC", "03 14"),
        # Without a unique line, the end of the path is preferred.
        ("aa", "aaaa", "02 13"),
        ("abab", "ababab", "02 13 24 35"),
        # Of a line that was moved, the pair that leaves more pairs is kept.
        ("abcdx", "xabcd", "01 12 23 34"),
        ("bx", "xb", "01"),
    ],
)
def test_equal_lines_are_paired_in_order(ours: str, theirs: str, pairs: str) -> None:
    found = pair_digests(encode(ours), encode(theirs))
    assert " ".join(f"{our}{their}" for our, their in found) == pairs


@pytest.mark.parametrize("seed", range(40))
def test_unchanged_unique_lines_are_always_paired(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randint(1, 120)
    path = [
        draw.choice(encode("abc") if seed % 3 == 0 else [draw.randbytes(12)]) for _ in range(size)
    ]
    kept: dict[int, int] = {}
    ours: list[bytes] = []
    for place in range(draw.randint(0, size - 1), size):
        if draw.random() < 0.15:
            continue
        if draw.random() < 0.1:
            ours.append(draw.randbytes(12))
        if draw.random() < 0.1:
            ours.append(draw.randbytes(12))
            continue
        if path.count(path[place]) == 1:
            kept[len(ours)] = place
        ours.append(path[place])
    pairs = pair_digests(ours, path)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert all(ours[our] == path[their] for our, their in pairs)
    assert kept.items() <= dict(pairs).items()


def test_many_repeated_lines_take_time_in_proportion() -> None:
    draw = random.Random(1)
    path = draw.choices([draw.randbytes(DIGEST_BYTES) for _ in range(60)], k=5_000)
    ours = [*path[:2_000], *path[2_010:]]
    pairs = pair_digests(ours, path)
    assert len(pairs) > 4_900
    assert all(ours[our] == path[their] for our, their in pairs)


@pytest.mark.parametrize(
    ("ours", "theirs", "block"),
    [
        ("abcd", "abcd", (0, 4)),
        ("cdX", "abcd", (2, 2)),
        ("abXY", "abcd", (0, 2)),
        ("abWXYZ", "abcd", None),
        ("aXcd", "abcd", None),
        # A new line that is the same as an earlier one needs the whole alignment.
        ("abca", "abcd", None),
        ("", "abcd", None),
    ],
)
def test_a_list_that_has_only_grown_is_one_block(
    ours: str, theirs: str, block: tuple[int, int] | None
) -> None:
    assert find_block(b"".join(encode(ours)), b"".join(encode(theirs)), max_tail=3) == block


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (LONG, LONG[:30]),
        (LONG[:30], LONG),
        (f"{LONG} She never", LONG),
        (LONG, LONG.replace("winter", "spring")),
        (f"<status>Tired, cold, hungry</status>\n{LONG}", LONG),
        (LONG, "*" + LONG.replace(",", '"') + "*"),
        (
            "磨坊主去年冬天去世了他的女儿在雪中继续转动水车",
            "磨坊主去年冬天去世了他的女儿在雪里继续转动水车",
        ),
        (f"{'word ' * 30_000}end", f"{'word ' * 30_000}other end"),
    ],
)
def test_a_trimmed_or_slightly_changed_text_is_near(stored: str, sent: str) -> None:
    assert TextProfile(stored).compare(TextProfile(sent)) is not None


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (LONG, "She nods slowly, and points to the door that leads out into the dark yard."),
        ("Yes.", "No."),
        ("", LONG),
        (LONG, " "),
        (
            "磨坊主去年冬天去世了他的女儿在雪中继续转动水车",
            "她慢慢点头指向通往黑暗院子的那扇门然后微笑着离开",
        ),
    ],
)
def test_another_text_is_not_near(stored: str, sent: str) -> None:
    assert TextProfile(stored).compare(TextProfile(sent)) is None


def make_units(*texts: str) -> list[tuple[int, Unit]]:
    """Return units of the user for capitals, and of the assistant for other texts."""
    return [(place, Unit(place, get_role(text), text, b"")) for place, text in enumerate(texts)]


def get_role(text: str) -> Any:
    return "user" if text[0].isupper() else "assistant"


def make_candidates(*texts: str) -> list[GapMessage]:
    """Return stored messages. A text in brackets is hidden."""
    return [
        GapMessage(
            stored=place,
            role=get_role(text.strip("[]")),
            is_hidden=text.startswith("["),
            text=text.strip("[]"),
        )
        for place, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("units", "stored", "pairs"),
    [
        (["Up we go"], ["Down to the sea"], [(0, 0, "changed")]),
        (["Up we go", "well said"], ["Down to the sea", "never"],
         [(0, 0, "changed"), (1, 1, "changed")]),
        # The near message is the changed one, and the others are missing.
        (["One two three four six"], ["Seven", "x", "One two three four five"], [(0, 2, "near")]),
        # A line of another role is an inserted one.
        (["A note of the author"], ["she sings"], []),
        # A hidden message is not replaced by another text, only shown again with a near one.
        (["A note of the author"], ["[Down to the sea]"], []),
        (["Down to the seas, to the sea"], ["[Down to the seas, to the s]"], [(0, 0, "near")]),
        ([], ["Down to the sea"], []),
        ([" "], ["Down to the sea"], []),
    ],
)  # fmt: skip
def test_lines_between_two_pairs_are_changed_missing_or_inserted(
    units: list[str], stored: list[str], pairs: list[tuple[int, int, str]]
) -> None:
    found = settle_gap(make_units(*units), make_candidates(*stored))
    assert [(pair.unit, pair.stored, pair.kind) for pair in found] == pairs


def test_a_large_gap_is_paired_by_roles() -> None:
    texts = [f"Line {n}" if n % 2 else f"reply {n}" for n in range(60)]
    found = settle_gap(make_units(*texts), make_candidates(*(f"{text} more" for text in texts)))
    assert [(pair.unit, pair.stored) for pair in found] == [(n, n) for n in range(60)]


def test_a_merged_line_is_matched_by_the_lines_inside() -> None:
    def digest(text: str) -> bytes:
        return DIGESTER.compute("user", text)

    pieces = ("First.", "One half.", "Other half.", "A note.", "Last.")
    line = Line(role="user", text="\n\n".join(pieces), author="", place=0, pieces=pieces)
    known = {digest("First."), digest("One half.\n\nOther half."), digest("Last.")}
    units = split_lines(PieceDigests(DIGESTER), [line], [digest(line.text)], known)
    assert [unit.text for unit in units] == [
        "First.",
        "One half.\n\nOther half.",
        "A note.",
        "Last.",
    ]
    [whole] = split_lines(PieceDigests(DIGESTER), [line], [digest(line.text)], ())
    assert whole.text == line.text


def test_white_space_and_composition_do_not_matter_but_the_role_does() -> None:
    digest = DIGESTER.compute("user", "Caf\u00e9  au\n lait ")
    assert digest == DIGESTER.compute("user", " Cafe\u0301 au lait")
    assert digest != DIGESTER.compute("assistant", "Caf\u00e9 au lait")
    assert len(digest) == DIGEST_BYTES
