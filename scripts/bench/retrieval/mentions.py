"""Measure how well names are resolved to entities of a campaign.

The mentions are those of `tests/fixtures/mentions*.json`. An outcome is `right`, `duplicated` (a
known entity is taken for a new one), `merged` (with the wrong entity), or `asked` without need.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from backend.campaigns.names.roster import Member, Roster
from scripts.bench.data import FIXTURES
from scripts.bench.tables import new_parser, print_grid

SETS = {
    "tuned with": "mentions.json",
    "held out": "mentions_held_out.json",
    "unseen": "mentions_unseen.json",
}
OUTCOMES = ("right", "duplicated", "merged", "asked")


def resolve_mentions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the outcome and a description of each mention."""
    for scene in json.loads(path.read_text(encoding="utf-8")):
        members, present = make_members(scene["cast"])
        roster = Roster(members.values(), present=present)
        names = {member.id: name for name, member in members.items()}
        for mention in scene["mentions"]:
            found = [names[each] for each in roster.resolve(mention["said"], mention["kind"])]
            outcome = classify(mention["means"], found)
            text = f"{scene['language']} {mention['said']!r} {outcome}: {', '.join(found)}"
            yield outcome, text


def make_members(cast: list[dict[str, Any]]) -> tuple[dict[str, Member], set[UUID]]:
    """Return the members by name, and the ids of those that are present."""
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


def classify(expected: list[str], found: list[str]) -> str:
    """Return one of `OUTCOMES`."""
    if sorted(expected) == sorted(found):
        return "right"
    if not found:
        return "duplicated"
    if len(found) > 1:
        return "right" if len(expected) > 1 and set(expected) <= set(found) else "asked"
    return "merged"


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval mentions", __doc__)
    parser.add_argument("--wrong", action="store_true", help="list the mentions that are not right")
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for label, name in SETS.items():
        outcomes = list(resolve_mentions(FIXTURES / name))
        counts = Counter(outcome for outcome, _ in outcomes)
        total += counts
        rows[label] = _make_row(counts)
        for outcome, text in outcomes if options.wrong else []:
            if outcome != "right":
                print(f"    {text}")
    figures = {"sets": {**rows, "all": _make_row(total)}, "times": measure_times()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_grid("set", figures["sets"])
    print_grid("processor time", {"": figures["times"]})


def _make_row(counts: Counter[str]) -> dict[str, Any]:
    count = counts.total()
    return {"mentions": count} | {key: f"{counts[key] / count:.1%}" for key in OUTCOMES}


def measure_times() -> dict[str, Any]:
    """Return the time to make a roster of 5,000 entities, and to resolve a mention."""
    members = [
        Member(uuid4(), "npc", (f"{a}{b} {c}{d}",), "", None, "public")
        for a in ("Mar", "Hen", "Tor", "Ili", "Bar", "Kes", "Dan", "Oth", "Fen", "Wil")
        for b in ("lena", "drik", "wald", "as", "ona", "mund", "ric", "elle", "o", "ga")
        for c in ("Stone", "Ash", "Wolf", "Thorn", "Bright", "Black", "Elm", "Grey", "Red", "Low")
        for d in ("field", "worth", "bourne", "crest", "ley")
    ]
    began = time.process_time()
    roster = Roster(members)
    roster_seconds = time.process_time() - began
    mentions = ["Marlena Stonefield", "Captain Thornley", "Hendrk Ashworth", "the innkeeper", "Zyx"]
    began = time.process_time()
    for _ in range(20):
        for mention in mentions:
            roster.resolve(mention)
    seconds = (time.process_time() - began) / 20 / len(mentions)
    return {
        "entities": len(members),
        "roster (ms)": round(roster_seconds * 1e3),
        "mention (ms)": round(seconds * 1e3, 2),
    }
