#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How well the rules find the tags of replies, and what a model makes of that which confirms them.

    scripts/bench_tags.py [--wrong]

The replies are those of `tests/fixtures/tagged_replies*.json`. No model is asked: what one would
make of the tags is worked out from the labels. `--wrong` lists what is not right.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.campaigns.glossary.tags import TAGS, find_tags

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
SETS = {"tuned with": "tagged_replies.json", "held out": "tagged_replies_held_out.json"}

Confirms = Callable[[str, Sequence[str]], bool]
"""Whether a tag that was found stays, given the right ones."""


def _all(_tag: str, _right: Sequence[str]) -> bool:
    return True


def judged(replies: Sequence[dict[str, Any]], confirms: Confirms) -> dict[str, Counter[str]]:
    """By tag: found `right`, found `wrongly`, and `missed`."""
    counts: dict[str, Counter[str]] = {tag: Counter() for tag in TAGS}
    for reply in replies:
        for tag in TAGS:
            is_found = tag in reply["found"] and confirms(tag, reply["tags"])
            if is_found:
                counts[tag]["right" if tag in reply["tags"] else "wrongly"] += 1
            elif tag in reply["tags"]:
                counts[tag]["missed"] += 1
    return counts


def read(name: str) -> list[dict[str, Any]]:
    """Labelled replies, with what the rules find in each of them."""
    data = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return [
        {
            **reply,
            "found": [
                each.tag for each in find_tags(reply["text"], data["names"], data["players"])
            ],
        }
        for reply in data["replies"]
    ]


def shares(counts: Counter[str]) -> tuple[float, float]:
    """Precision and recall."""
    right = counts["right"]
    return right / max(1, right + counts["wrongly"]), right / max(1, right + counts["missed"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", action="store_true", help="list what is not right")
    arguments = parser.parse_args()
    both: list[dict[str, Any]] = []
    print(f"{'rules alone':26}{'replies':>8}{'tags':>6}{'precision':>11}{'recall':>8}")
    for label, name in SETS.items():
        replies = read(name)
        both += replies
        _print(label, replies)
        for reply in replies if arguments.wrong else []:
            if set(reply["found"]) != set(reply["tags"]):
                extra = sorted(set(reply["found"]) - set(reply["tags"]))
                missed = sorted(set(reply["tags"]) - set(reply["found"]))
                print(f"    +{extra} -{missed}  {reply['text']}")
    _print("both", both)
    for language in ("en", "de"):
        _print(f"  {language}", [reply for reply in both if reply["language"] == language])
    for tag, counts in judged(both, _all).items():
        precision, recall = shares(counts)
        print(
            f"  {tag:24}{'':8}{counts['right'] + counts['missed']:>6}"
            f"{precision:>11.2f}{recall:>8.2f}"
        )
    draw = random.Random(16)  # no secret
    print("confirmed by a model that")
    models: dict[str, Confirms] = {
        "confirms rightly": lambda tag, right: tag in right,
        "is right nine times of ten": lambda tag, right: (tag in right) is (draw.random() < 0.9),
        "confirms at random": lambda _tag, _right: draw.random() < 0.5,
        "confirms wrongly": lambda tag, right: tag not in right,
    }
    for label, confirms in models.items():
        _print(f"  {label}", both, confirms)
    calls = sum(bool(reply["found"]) for reply in both)
    none = [reply for reply in both if not reply["tags"]]
    spared = sum(not reply["found"] for reply in none)
    print(
        f"{calls} of {len(both)} replies ask a model; {spared} of {len(none)} without a tag do not"
    )
    text = " ".join(reply["text"] for reply in both)[:50_000]
    for size in (2_000, len(text)):
        began = time.process_time()
        for _ in range(5):
            find_tags(text[:size], ["Marlena"], ["Jake"])
        print(f"{size:,} characters: {(time.process_time() - began) / 5 * 1e3:.1f} ms")


def _print(label: str, replies: Sequence[dict[str, Any]], confirms: Confirms = _all) -> None:
    total = sum(judged(replies, confirms).values(), Counter[str]())
    precision, recall = shares(total)
    tags = sum(len(reply["tags"]) for reply in replies)
    print(f"{label:26}{len(replies):>8}{tags:>6}{precision:>11.2f}{recall:>8.2f}")


if __name__ == "__main__":
    main()
