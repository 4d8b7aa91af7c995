"""Input texts: the transcripts of CRD3, random lines, and lorebooks made of lines."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests" / "fixtures"
DATA = REPOSITORY.parent / "shared" / "data"
CRD3 = DATA / "crd3"
LOCOMO = DATA / "locomo" / "locomo_first5.json"
MINILM = DATA / "minilm-l6-v2-int8"

Lines = Sequence[tuple[str, str]]
"""(speaker, text) of each line."""


def read_utterances(folder: Path) -> list[tuple[str, str]]:
    """Return every turn of the transcripts in order, or random lines if there are none."""
    files = sorted(folder.glob("*.json"))
    if not files:
        print(f"No transcripts in {folder}: random lines are used.", file=sys.stderr)
        return make_utterances()
    return [
        (" and ".join(turn["NAMES"]), " ".join(turn["UTTERANCES"]))
        for file in files
        for turn in json.loads(file.read_text())["TURNS"]
    ]


def make_utterances() -> list[tuple[str, str]]:
    """Return 5,000 lines of random words, as long as spoken lines and the same in each run."""
    draw = random.Random(20)
    words = re.findall(r"\w+", "and the of a to you it in we she that road door light under water")
    return [
        (draw.choice(("Ada", "Ben", "Cleo")), " ".join(draw.choices(words, k=draw.randint(3, 40))))
        for _ in range(5000)
    ]


def join_utterances(lines: Lines, count: Callable[[str], int], size: int) -> list[str]:
    """Return messages of about `size` tokens, each made of several lines."""
    texts: list[str] = []
    parts: list[str] = []
    tokens = 0
    for speaker, text in lines:
        parts.append(f"{speaker}: {text}")
        tokens += count(parts[-1])
        if tokens >= size:
            texts.append("\n".join(parts))
            parts, tokens = [], 0
    return texts


def choose_questions(lines: Lines, count: int) -> list[str]:
    """Return different lines of at least five words, questions first, the same in each run."""
    long = list(dict.fromkeys(text for _, text in lines if 5 <= len(text.split()) <= 60))
    questions = [text for text in long if text.endswith("?")]
    statements = [text for text in long if not text.endswith("?")]
    draw = random.Random(21)
    draw.shuffle(questions)
    draw.shuffle(statements)
    return [*questions, *statements][:count]


def make_book(number: int, entries: int, lines: Lines) -> bytes:
    """Return a World Info file. Its entries have 40 to 120 words and three keys each.

    One key of every fifteenth entry is a word that at most 20 lines contain. No line contains
    another key. Contents are made of lines; the last one ends in `lastentry<number>`.
    """
    draw = random.Random(100 + number)
    texts = [text for _, text in lines]
    counts = Counter(word for text in texts for word in set(re.findall(r"[a-z]{4,}", text)))
    rare = sorted(word for word, count in counts.items() if count <= 20)
    book: dict[str, Any] = {}
    for position in range(entries):
        words: list[str] = []
        size = draw.randint(40, 120)
        while len(words) < size:
            words += draw.choice(texts).split()
        words = words[:size]
        if position == entries - 1:
            words.append(f"lastentry{number}")
        book[str(position)] = {
            "uid": position,
            "key": [
                f"ruin{number}x{position}",
                f"house of {number}x{position}",
                f"oath{number}x{position}" if position % 15 else draw.choice(rare),
            ],
            "keysecondary": [],
            "comment": f"Entry {number}.{position}",
            "content": " ".join(words),
            "order": draw.randint(1, 200),
        }
    return json.dumps({"entries": book}).encode()
