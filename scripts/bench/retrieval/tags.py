"""Measure how well the rules find the tags of replies, alone and with a model that confirms them.

The replies are those of `tests/fixtures/tagged_replies*.json`. No model is asked: the answers of a
model are computed from the labels.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from backend.campaigns.glossary.tags import TAGS, find_tags
from scripts.bench.data import FIXTURES
from scripts.bench.tables import new_parser, print_grid

SETS = {"tuned with": "tagged_replies.json", "held out": "tagged_replies_held_out.json"}
Reply = dict[str, Any]

Confirm = Callable[[str, Sequence[str]], bool]
"""Returns True if a tag that was found is kept, given the right tags."""


def _confirm_all(_tag: str, _right: Sequence[str]) -> bool:
    return True


def count_tags(replies: Sequence[Reply], confirm: Confirm) -> dict[str, Counter[str]]:
    """Return the numbers of `right`, `wrong` and `missed` by tag."""
    counts: dict[str, Counter[str]] = {tag: Counter() for tag in TAGS}
    for reply in replies:
        for tag in TAGS:
            if tag in reply["found"] and confirm(tag, reply["tags"]):
                counts[tag]["right" if tag in reply["tags"] else "wrong"] += 1
            elif tag in reply["tags"]:
                counts[tag]["missed"] += 1
    return counts


def read_replies(name: str) -> list[Reply]:
    """Return labelled replies with the tags that the rules find."""
    data = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return [
        reply
        | {"found": [each.tag for each in find_tags(reply["text"], data["names"], data["players"])]}
        for reply in data["replies"]
    ]


def _make_row(replies: int | str, counts: Counter[str]) -> dict[str, Any]:
    right = counts["right"]
    return {
        "replies": replies,
        "tags": right + counts["missed"],
        "precision": round(right / max(1, right + counts["wrong"]), 2),
        "recall": round(right / max(1, right + counts["missed"]), 2),
    }


def measure(replies: Sequence[Reply], confirm: Confirm = _confirm_all) -> dict[str, Any]:
    """Return the figures of all tags together."""
    total = sum(count_tags(replies, confirm).values(), Counter[str]())
    return _make_row(len(replies), total)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval tags", __doc__)
    parser.add_argument("--wrong", action="store_true", help="list the replies with wrong tags")
    options = parser.parse_args(arguments)
    sets = {label: read_replies(name) for label, name in SETS.items()}
    replies = [reply for some in sets.values() for reply in some]
    rows = {label: measure(some) for label, some in sets.items()}
    rows["both"] = measure(replies)
    for language in ("en", "de"):
        rows[f"  {language}"] = measure([each for each in replies if each["language"] == language])
    for tag, counts in count_tags(replies, _confirm_all).items():
        rows[f"  {tag}"] = _make_row("", counts)
    draw = random.Random(16)
    models: dict[str, Confirm] = {
        "confirms correctly": lambda tag, right: tag in right,
        "is right nine times in ten": lambda tag, right: (tag in right) is (draw.random() < 0.9),
        "confirms at random": lambda _tag, _right: draw.random() < 0.5,
        "confirms wrongly": lambda tag, right: tag not in right,
    }
    confirmed = {label: measure(replies, confirm) for label, confirm in models.items()}
    if options.json:
        print(json.dumps({"rules": rows, "models": confirmed}, indent=2))
        return
    for reply in replies if options.wrong else []:
        extra = sorted(set(reply["found"]) - set(reply["tags"]))
        missed = sorted(set(reply["tags"]) - set(reply["found"]))
        if extra or missed:
            print(f"    +{extra} -{missed}  {reply['text']}")
    print_grid("rules alone", rows)
    print_grid("confirmed by a model that", confirmed)
    calls = sum(bool(reply["found"]) for reply in replies)
    untagged = [reply for reply in replies if not reply["tags"]]
    spared = sum(not reply["found"] for reply in untagged)
    print(f"\n{calls} of {len(replies)} replies need a model")
    print(f"{spared} of {len(untagged)} replies without a tag need none")
    text = " ".join(reply["text"] for reply in replies)[:50_000]
    for size in (2_000, len(text)):
        began = time.process_time()
        for _ in range(5):
            find_tags(text[:size], ["Marlena"], ["Jake"])
        print(f"{size:,} characters: {(time.process_time() - began) / 5 * 1e3:.1f} ms")
