#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How well names are resolved to entities.

    scripts/bench_mentions.py [--wrong]

The mentions are those of `tests/fixtures/mentions*.json`. `--wrong` lists what is not right.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from backend.campaigns.names.roster import Member, Roster

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
SETS = {
    "tuned with": "mentions.json",
    "held out": "mentions_held_out.json",
    "unseen": "mentions_unseen.json",
}


def outcomes(path: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Each mention's language, what it says, its outcome, and the names that it was resolved to."""
    for scene in json.loads(path.read_text(encoding="utf-8")):
        members, present = roster_of(scene["cast"])
        roster = Roster(members.values(), present=present)
        names = {member.id: name for name, member in members.items()}
        for mention in scene["mentions"]:
            found = [names[each] for each in roster.resolve(mention["said"], mention["kind"])]
            yield scene["language"], mention["said"], outcome(mention["means"], found), found


def roster_of(cast: list[dict[str, Any]]) -> tuple[dict[str, Member], set[UUID]]:
    """Members by name, and who of them is present."""
    members = {
        each["name"]: Member(
            id=uuid4(),
            kind=each["kind"],
            names=(each["name"], *each.get("aliases", ())),
            role=each.get("role", ""),
            place_id=None,
            audience="public",
        )
        for each in cast
    }
    return members, {members[each["name"]].id for each in cast if each.get("present")}


def outcome(means: list[str], found: list[str]) -> str:
    """`right`, `duplicated` (new, though known), `merged` wrongly, or `asked` without need."""
    if sorted(means) == sorted(found):
        return "right"
    if not found:
        return "duplicated"
    if len(found) > 1:
        return "right" if len(means) > 1 and set(means) <= set(found) else "asked"
    return "merged"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", action="store_true", help="list what is not right")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    print(f"{'':12}{'mentions':>9}{'right':>8}{'duplicated':>12}{'merged':>8}{'asked':>7}")
    for label, name in SETS.items():
        rows = list(outcomes(FIXTURES / name))
        counts = Counter(row[2] for row in rows)
        total += counts
        _print(label, counts)
        for language, said, which, found in rows if arguments.wrong else []:
            if which != "right":
                print(f"    {language} {said!r} {which}: {', '.join(found)}")
    _print("all", total)
    members = [
        Member(uuid4(), "npc", (f"{a}{b} {c}{d}",), "", None, "public")
        for a in ("Mar", "Hen", "Tor", "Ili", "Bar", "Kes", "Dan", "Oth", "Fen", "Wil")
        for b in ("lena", "drik", "wald", "as", "ona", "mund", "ric", "elle", "o", "ga")
        for c in ("Stone", "Ash", "Wolf", "Thorn", "Bright", "Black", "Elm", "Grey", "Red", "Low")
        for d in ("field", "worth", "bourne", "crest", "ley")
    ]
    began = time.process_time()
    roster = Roster(members)
    made = time.process_time() - began
    mentions = ["Marlena Stonefield", "Captain Thornley", "Hendrk Ashworth", "the innkeeper", "Zyx"]
    began = time.process_time()
    for _ in range(20):
        for mention in mentions:
            roster.resolve(mention)
    seconds = (time.process_time() - began) / 100
    print(
        f"{len(members):,} entities: {made * 1e3:.0f} ms to make, {seconds * 1e3:.2f} ms a mention"
    )


def _print(label: str, counts: Counter[str]) -> None:
    count = counts.total()
    shares = [f"{counts[key] / count:.1%}" for key in ("right", "duplicated", "merged", "asked")]
    print(f"{label:12}{count:>9}{shares[0]:>8}{shares[1]:>12}{shares[2]:>8}{shares[3]:>7}")


if __name__ == "__main__":
    main()
