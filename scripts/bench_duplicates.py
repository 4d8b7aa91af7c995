#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Whether the chronicle tells an event that says the same from one that only sounds like it.

    scripts/bench_duplicates.py [--pairs FILE] [--data FILE] [--model-path DIR] [--choose] [--json]

The pairs of `tests/fixtures/duplicates.json` are compared as the agent's events are, each way
round: either event may be the new one. A new event is refused by itself only in the very words of
an old one; what is near the model is asked about. Thresholds were chosen on the half `choose`;
`check` is the other half, `languages` are pairs that are not in English. `--choose` prints what
other thresholds come to. Peers get the threshold with the best F1 on `choose`.

Besides, where LoCoMo's file is there: what would be refused, or asked about, of the observations
that its authors took down of each dialogue, one after the other. Nearly all of them are news.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
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
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Floats
from backend.vault.sealing import Sealer

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
PAIRS = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "duplicates.json"
IDS = UUID("5f1f2f6e-7d0c-5a70-9f55-1d6b6c7a0004")
SPLITS = ("choose", "check", "languages")
NEAREST = 20


class Pair(msgspec.Struct, frozen=True):
    """Two events, whether they say the same, and how or why not (`kind`)."""

    split: str
    same: bool
    kind: str
    one: EventFields
    other: EventFields


@dataclass(frozen=True)
class Event:
    """An event as it is compared."""

    id: UUID
    fields: EventFields


@dataclass(frozen=True)
class Compared:
    """A pair, one way round, with what is seen in it, and how a diff likes it."""

    pair: Pair
    near: SimilarEvent[Event]
    ratio: float


@dataclass(frozen=True)
class Observed:
    """An observation with what stands before it in its dialogue, nearest first."""

    text: str
    near: Sequence[SimilarEvent[Event]]


Decide = Callable[[Compared], bool]


class Model:
    """Embeds without a database; each text once."""

    def __init__(self, folder: Path) -> None:
        self._embedder = LocalEmbedder(folder, workers=2)
        self._vectors: dict[str, Floats] = {}

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:  # noqa: ARG002  # nothing is sealed
        """Vectors, shape (n, d)."""
        wanted = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if wanted:
            made = await self._embedder.embed(wanted, "document")
            self._vectors.update(zip(wanted, made, strict=True))
        return np.stack([self._vectors[text] for text in texts])


def event(fields: EventFields) -> Event:
    return Event(uuid5(IDS, repr(fields)), fields)


async def compare(finder: DuplicateFinder, pairs: Sequence[Pair]) -> list[Compared]:
    """Each pair, each way round."""
    found: list[Compared] = []
    for pair in pairs:
        for new, old in ((pair.one, pair.other), (pair.other, pair.one)):
            (near,) = await finder.nearest(new, [event(old)])
            ratio = SequenceMatcher(None, new.summary, old.summary, autojunk=False).ratio()
            found.append(Compared(pair, near, ratio))
    return found


async def observe(
    finder: DuplicateFinder, sealer: Sealer, dialogues: Sequence[Mapping[str, Any]], model: Model
) -> list[Observed]:
    """LoCoMo's observations, each with the nearest before it in its dialogue, by meaning."""
    found: list[Observed] = []
    for dialogue in dialogues:
        told: list[EventFields] = [
            EventFields(summary=text, who=[speaker])
            for session in dialogue["observation"].values()
            for speaker, texts in session.items()
            for text, *_ in texts
        ]
        vectors = await model.embed_documents(sealer, [each.summary for each in told])
        for at, new in enumerate(told):
            nearest = np.argsort(-(vectors[:at] @ vectors[at]))[:NEAREST]
            old = [event(told[int(row)]) for row in nearest]
            found.append(Observed(new.summary, await finder.nearest(new, old)))
    return found


def figures(compared: Sequence[Compared], decide: Decide) -> dict[str, float]:
    """Precision, recall and F1 in per cent, and the share of news that is refused."""
    refused = [each.pair.same for each in compared if decide(each)]
    same = sum(each.pair.same for each in compared)
    right = sum(refused)
    precision = right / len(refused) if refused else 0.0
    recall = right / same
    both = precision + recall
    return {
        "precision": round(100 * precision, 1),
        "recall": round(100 * recall, 1),
        "f1": round(200 * precision * recall / both, 1) if both else 0.0,
        "wrong": round(100 * (len(refused) - right) / (len(compared) - same), 1),
    }


def cut(compared: Sequence[Compared], value: Callable[[Compared], float]) -> float:
    """The threshold of one value with the best F1; of equal ones the highest."""
    steps = sorted({value(each) for each in compared}, reverse=True)
    return max(steps, key=lambda step: figures(compared, _at_least(value, step))["f1"])


def choose(compared: Sequence[Compared], observed: Sequence[Observed]) -> None:
    """Print how much is asked about under other thresholds."""
    print(f"{'cosine':>8}{'likeness':>10}{'duplicates':>12}{'news':>12}{'observations':>14}")
    for cosine, likeness in product((None, 0.75, 0.8, 0.85), (0.3, 0.35, 0.4, 0.45)):
        least = DuplicateThresholds(
            cosine=cosine or 0.0, likeness=likeness, likeness_alone=likeness
        )

        known = by_meaning if cosine else by_words
        found = figures(compared, _asks(known, least))
        asked = sum(any(known(near).may_be_same(least) for near in each.near) for each in observed)
        row = (f"{found[name]:>12}" for name in ("recall", "wrong"))
        print(f"{cosine or '-':>8}{likeness:>10}{''.join(row)}{asked:>14}")


def by_meaning(near: SimilarEvent[Event]) -> SimilarEvent[Event]:
    """What is known of an event with an embedder: everything."""
    return near


def by_words(near: SimilarEvent[Event]) -> SimilarEvent[Event]:
    """What is known of an event without an embedder."""
    return replace(near, cosine=None)


def _asks(
    known: Callable[[SimilarEvent[Event]], SimilarEvent[Event]], least: DuplicateThresholds
) -> Decide:
    return lambda each: known(each.near).may_be_same(least)


def methods(chosen: Sequence[Compared]) -> dict[str, Decide]:
    """What decides, by name; the peers' thresholds come from `chosen`."""
    values: dict[str, Callable[[Compared], float]] = {
        "difflib": lambda each: each.ratio,
        "cosine alone": lambda each: each.near.cosine or 0.0,
        "likeness alone": lambda each: each.near.likeness,
    }
    found: dict[str, Decide] = {"cosine >= 0.9": lambda each: (each.near.cosine or 0.0) >= 0.9}
    for name, value in values.items():
        found[f"{name} >= {cut(chosen, value):.3f}"] = _at_least(value, cut(chosen, value))
    ours: dict[str, Decide] = {
        "Talekeeper refuses": lambda each: each.near.is_same,
        "refuses or asks, words alone": lambda each: _is_seen(by_words(each.near)),
        "refuses or asks": lambda each: _is_seen(each.near),
    }
    return found | ours


def _is_seen(near: SimilarEvent[Event]) -> bool:
    """Whether an event is refused, or asked about."""
    return near.is_same or near.may_be_same()


def _at_least(value: Callable[[Compared], float], least: float) -> Decide:
    return lambda each: value(each) >= least


def summary(compared: Sequence[Compared], observed: Sequence[Observed]) -> dict[str, Any]:
    """Every figure of the run, in per cent."""
    halves = {
        split: [each for each in compared if each.pair.split == split] for split in SPLITS
    }  # fmt: skip
    decides = methods(halves["choose"])
    ours = {name: decide for name, decide in decides.items() if name.startswith("refuses or asks")}
    kinds = sorted({(not each.pair.same, each.pair.kind) for each in compared})
    check = halves["check"]
    return {
        "pairs": {split: len(half) // 2 for split, half in halves.items()},
        "thresholds": asdict(DUPLICATE_THRESHOLDS),
        "methods": {
            name: {split: figures(half, decide) for split, half in halves.items()}
            for name, decide in decides.items()
        },
        "seen_by_kind": {
            kind: {name: _share(check, kind, decide) for name, decide in ours.items()}
            for _, kind in kinds
        },
        "observations": len(observed),
        "observations_refused": [
            (each.text, near.event.fields.summary)
            for each in observed
            for near in each.near
            if near.is_same
        ],
        "observations_asked_about": {
            "words alone": _asked(observed, by_words),
            "with meaning": _asked(observed, by_meaning),
        },
    }


def _share(compared: Sequence[Compared], kind: str, decide: Decide) -> str:
    of_kind = [each for each in compared if each.pair.kind == kind]
    return f"{sum(map(decide, of_kind))}/{len(of_kind)}"


def _asked(
    observed: Sequence[Observed], known: Callable[[SimilarEvent[Event]], SimilarEvent[Event]]
) -> int:
    return sum(any(known(near).may_be_same() for near in each.near) for each in observed)


def show(found: Mapping[str, Any]) -> None:
    """Print the tables."""
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"pairs: {found['pairs']}, thresholds: {found['thresholds']}\n")
    heads = ("precision", "recall", "f1", "wrong")
    print(" " * 34 + "".join(f"{split:>10}" + " " * 26 for split in SPLITS))
    print(" " * 34 + "".join(f"{head:>9}" for _ in SPLITS for head in heads))
    for name, halves in found["methods"].items():
        print(f"{name:<34}" + "".join(f"{halves[s][head]:>9}" for s in SPLITS for head in heads))
    print("\nrefused or asked about of check, by kind")
    for kind, shares in found["seen_by_kind"].items():
        print(f"  {kind:<16}" + "".join(f"{name}: {share:<12}" for name, share in shares.items()))
    refused = found["observations_refused"]
    print(f"\n{len(refused)} of {found['observations']:,} observations refused")
    for new, old in refused:
        print(f"  {new}\n    = {old}")
    asked = found["observations_asked_about"]
    print("\nobservations asked about: " + ", ".join(f"{n}: {c}" for n, c in asked.items()))


async def run(
    pairs: Sequence[Pair],
    dialogues: Sequence[Mapping[str, Any]],
    model_path: Path,
    *,
    chooses: bool,
) -> dict[str, Any]:
    """Compare everything."""
    model = Model(model_path)
    sealer = Sealer(IDS, {1: bytes(32)}, user_key=IDS.bytes * 2)
    finder = DuplicateFinder(sealer, model, CpuPool())
    compared = await compare(finder, pairs)
    observed = await observe(finder, sealer, dialogues, model)
    if chooses:
        choose([each for each in compared if each.pair.split == "choose"], observed)
    return summary(compared, observed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="labelled pairs of events")
    parser.add_argument(
        "--data", type=Path, default=SHARED / "locomo" / "locomo_first5.json", help="LoCoMo's file"
    )
    parser.add_argument(
        "--model-path",
        type=Path,
        default=SHARED / "minilm-l6-v2-int8",
        help="folder of the embedding model (ONNX)",
    )
    parser.add_argument("--choose", action="store_true", help="show other thresholds first")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    pairs = msgspec.json.decode(options.pairs.read_bytes(), type=list[Pair])
    dialogues: list[dict[str, Any]] = []
    if options.data.is_file():
        dialogues = json.loads(options.data.read_text())
    found = asyncio.run(run(pairs, dialogues, options.model_path, chooses=options.choose))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
