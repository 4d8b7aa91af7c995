"""Measure how well the chronicle distinguishes events that say the same from similar ones.

The pairs of `tests/fixtures/duplicates.json` are compared as the agent's events are, in both
directions. A new event is refused if its words are those of an old one. If it is near an old one,
the model is asked. Constants were chosen on the half `choose`; `check` is the other half, and
`languages` are pairs in other languages. `--choose` prints the results of other constants. The
peers get the threshold with the best F1 on `choose`.

LoCoMo's observations, which its authors took of each dialogue, are nearly all new events. The last
figures are how many of them would be refused or asked about.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import msgspec
import numpy as np

from backend.chronicles.events import EventFields
from backend.core.cpu_pool import CpuPool
from backend.core.logs import configure_logging
from backend.enrichment.agent.duplicates import (
    DUPLICATE_THRESHOLDS,
    DuplicateFinder,
    DuplicateThresholds,
    SimilarEvent,
)
from backend.vault.sealing import Sealer
from scripts.bench.data import FIXTURES, LOCOMO
from scripts.bench.retrieval.search import (
    UncachedEmbedder,
    add_model_options,
    make_sealer,
    open_model,
)
from scripts.bench.tables import new_parser, print_grid, print_machine

PAIRS = FIXTURES / "duplicates.json"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0004")
SPLITS = ("choose", "check", "languages")
NEAREST_COUNT = 20
COSINES, LIKENESSES = (None, 0.75, 0.8, 0.85), (0.3, 0.35, 0.4, 0.45)


class EventPair(msgspec.Struct, frozen=True):
    """Two events; `kind` says in which way they are the same or differ."""

    split: str
    same: bool
    kind: str
    one: EventFields
    other: EventFields


@dataclass(frozen=True)
class ComparedEvent:
    """An event with an id."""

    id: UUID
    fields: EventFields


@dataclass(frozen=True)
class PairComparison:
    """A pair in one direction, with the finder's result and difflib's ratio."""

    pair: EventPair
    near: SimilarEvent[ComparedEvent]
    ratio: float


@dataclass(frozen=True)
class ComparedObservation:
    """An observation with the earlier ones of its dialogue, nearest first."""

    text: str
    near: Sequence[SimilarEvent[ComparedEvent]]


Decide = Callable[[PairComparison], bool]
View = Callable[[SimilarEvent[ComparedEvent]], SimilarEvent[ComparedEvent]]


def make_event(fields: EventFields) -> ComparedEvent:
    return ComparedEvent(uuid5(IDS, repr(fields)), fields)


async def compare_pairs(
    finder: DuplicateFinder, pairs: Sequence[EventPair]
) -> list[PairComparison]:
    """Compare each pair in both directions."""
    found: list[PairComparison] = []
    for pair in pairs:
        for new, old in ((pair.one, pair.other), (pair.other, pair.one)):
            (near,) = await finder.nearest(new, [make_event(old)])
            ratio = SequenceMatcher(None, new.summary, old.summary, autojunk=False).ratio()
            found.append(PairComparison(pair, near, ratio))
    return found


async def compare_observations(
    finder: DuplicateFinder,
    sealer: Sealer,
    dialogues: Sequence[Mapping[str, Any]],
    model: UncachedEmbedder,
) -> list[ComparedObservation]:
    """Compare each observation of LoCoMo with the nearest earlier ones of its dialogue."""
    found: list[ComparedObservation] = []
    for dialogue in dialogues:
        events = [
            EventFields(summary=text, who=[speaker])
            for session in dialogue["observation"].values()
            for speaker, texts in session.items()
            for text, *_ in texts
        ]
        vectors = await model.embed_documents(sealer, [each.summary for each in events])
        for at, new in enumerate(events):
            nearest = np.argsort(-(vectors[:at] @ vectors[at]))[:NEAREST_COUNT]
            old = [make_event(events[int(row)]) for row in nearest]
            found.append(ComparedObservation(new.summary, await finder.nearest(new, old)))
    return found


def measure(comparisons: Sequence[PairComparison], decide: Decide) -> dict[str, float]:
    """Return precision, recall and F1, and the share of new events that are hit, in per cent."""
    hits = [each.pair.same for each in comparisons if decide(each)]
    same = sum(each.pair.same for each in comparisons)
    right = sum(hits)
    precision = right / len(hits) if hits else 0.0
    recall = right / same
    both = precision + recall
    return {
        "precision": round(100 * precision, 1),
        "recall": round(100 * recall, 1),
        "f1": round(200 * precision * recall / both, 1) if both else 0.0,
        "wrong": round(100 * (len(hits) - right) / (len(comparisons) - same), 1),
    }


def choose_threshold(
    comparisons: Sequence[PairComparison], value: Callable[[PairComparison], float]
) -> float:
    """Return the threshold of a value with the best F1; the highest of equal ones."""
    steps = sorted({value(each) for each in comparisons}, reverse=True)
    return max(steps, key=lambda step: measure(comparisons, _is_at_least(value, step))["f1"])


def _is_at_least(value: Callable[[PairComparison], float], threshold: float) -> Decide:
    return lambda each: value(each) >= threshold


def print_constants(
    comparisons: Sequence[PairComparison], observations: Sequence[ComparedObservation]
) -> None:
    """Print how many events the model would be asked about with other constants."""
    rows: dict[str, dict[str, float]] = {}
    for cosine, likeness in product(COSINES, LIKENESSES):
        least = DuplicateThresholds(
            cosine=cosine or 0.0, likeness=likeness, likeness_alone=likeness
        )
        view = keep_meaning if cosine else drop_meaning
        figures = measure(comparisons, _may_be_same(view, least))
        rows[f"cosine {cosine or '-'}, likeness {likeness}"] = {
            "duplicates": figures["recall"],
            "new": figures["wrong"],
            "observations": _count_asked(observations, view, least),
        }
    print_grid("asked about", rows)


def keep_meaning(near: SimilarEvent[ComparedEvent]) -> SimilarEvent[ComparedEvent]:
    """Return the result with an embedder."""
    return near


def drop_meaning(near: SimilarEvent[ComparedEvent]) -> SimilarEvent[ComparedEvent]:
    """Return the result without an embedder."""
    return replace(near, cosine=None)


def _may_be_same(view: View, least: DuplicateThresholds = DUPLICATE_THRESHOLDS) -> Decide:
    return lambda each: view(each.near).may_be_same(least)


def _is_noticed(view: View) -> Decide:
    """Decide whether an event is refused or asked about."""
    return lambda each: each.near.is_same or view(each.near).may_be_same()


def _count_asked(
    observations: Sequence[ComparedObservation],
    view: View,
    least: DuplicateThresholds = DUPLICATE_THRESHOLDS,
) -> int:
    return sum(any(view(near).may_be_same(least) for near in each.near) for each in observations)


def make_methods(chosen: Sequence[PairComparison]) -> dict[str, Decide]:
    """Return the decisions of peers and of Talekeeper; `chosen` sets the peers' thresholds."""
    values: dict[str, Callable[[PairComparison], float]] = {
        "difflib": lambda each: each.ratio,
        "cosine alone": lambda each: each.near.cosine or 0.0,
        "likeness alone": lambda each: each.near.likeness,
    }
    methods: dict[str, Decide] = {"cosine >= 0.9": _is_at_least(values["cosine alone"], 0.9)}
    for name, value in values.items():
        threshold = choose_threshold(chosen, value)
        methods[f"{name} >= {threshold:.3f}"] = _is_at_least(value, threshold)
    methods["Talekeeper refuses"] = lambda each: each.near.is_same
    methods["refuses or asks, words alone"] = _is_noticed(drop_meaning)
    methods["refuses or asks"] = _is_noticed(keep_meaning)
    return methods


def summarize(
    comparisons: Sequence[PairComparison], observations: Sequence[ComparedObservation]
) -> dict[str, Any]:
    """Return every figure, in per cent."""
    halves = {split: [each for each in comparisons if each.pair.split == split] for split in SPLITS}
    methods = make_methods(halves["choose"])
    kinds = sorted({(not each.pair.same, each.pair.kind) for each in comparisons})
    check = halves["check"]
    return {
        "pairs": {split: len(half) // 2 for split, half in halves.items()},
        "thresholds": asdict(DUPLICATE_THRESHOLDS),
        "methods": {
            split: {name: measure(half, decide) for name, decide in methods.items()}
            for split, half in halves.items()
        },
        "noticed_by_kind": {
            kind: {
                "words alone": _format_share(check, kind, _is_noticed(drop_meaning)),
                "with meaning": _format_share(check, kind, _is_noticed(keep_meaning)),
            }
            for _, kind in kinds
        },
        "observations": len(observations),
        "observations_refused": [
            (each.text, near.event.fields.summary)
            for each in observations
            for near in each.near
            if near.is_same
        ],
        "observations_asked_about": {
            "words alone": _count_asked(observations, drop_meaning),
            "with meaning": _count_asked(observations, keep_meaning),
        },
    }


def _format_share(comparisons: Sequence[PairComparison], kind: str, decide: Decide) -> str:
    of_kind = [each for each in comparisons if each.pair.kind == kind]
    return f"{sum(map(decide, of_kind))}/{len(of_kind)}"


def print_figures(figures: Mapping[str, Any]) -> None:
    print_machine()
    print(f"pairs: {figures['pairs']}, thresholds: {figures['thresholds']}")
    for split, rows in figures["methods"].items():
        print_grid(split, rows, width=34)
    print_grid("check, refused or asked about", figures["noticed_by_kind"], width=34)
    refused = figures["observations_refused"]
    print(f"\n{len(refused)} of {figures['observations']:,} observations refused")
    for new, old in refused:
        print(f"  {new}\n    = {old}")
    print(f"observations asked about: {figures['observations_asked_about']}")


async def run(
    pairs: Sequence[EventPair],
    dialogues: Sequence[Mapping[str, Any]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Compare all pairs and observations."""
    model, sealer = open_model(options), make_sealer(IDS)
    embedder = UncachedEmbedder(model)
    finder = DuplicateFinder(sealer, embedder, CpuPool())
    comparisons = await compare_pairs(finder, pairs)
    observations = await compare_observations(finder, sealer, dialogues, embedder)
    await model.aclose()
    if options.choose:
        print_constants([each for each in comparisons if each.pair.split == "choose"], observations)
    return summarize(comparisons, observations)


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("retrieval duplicates", __doc__)
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="labelled pairs of events")
    parser.add_argument("--data", type=Path, default=LOCOMO, help="LoCoMo's file")
    add_model_options(parser)
    parser.add_argument("--choose", action="store_true", help="print other constants first")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    pairs = msgspec.json.decode(options.pairs.read_bytes(), type=list[EventPair])
    dialogues: list[dict[str, Any]] = []
    if options.data.is_file():
        dialogues = json.loads(options.data.read_text())
    figures = asyncio.run(run(pairs, dialogues, options))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_figures(figures)
