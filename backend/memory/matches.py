"""Why something was found: which signals of a search speak for it, and how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from backend.memory.signals import Candidate, Found, Signal
from backend.memory.spans import Span
from backend.memory.terms import query_terms, shared_words
from backend.memory.thresholds import RankingThresholds
from backend.reasons import Match, MatchKind, Reason, ReasonKind

WEAK = 0.5
"""Strength below which a signal is not worth telling: two halves are just enough."""

_KINDS: tuple[tuple[Signal, MatchKind], ...] = (
    ("dense", "meaning"),
    ("sparse", "words"),
    ("dense_window", "meaning_around"),
    ("sparse_window", "words_around"),
    ("dense_question", "question"),
    ("sparse_question", "question"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchScale:
    """What the signals of one search are measured by.

    Attributes:
        enough: What is enough by itself, by meaning and by words.
        speakers: Those whom the query names, by their keyed ids.
        spans: Times that it names.
        scenes: How near scenes are, by the number of their id; the best one's is 1.
    """

    enough: RankingThresholds = field(default_factory=RankingThresholds)
    speakers: Mapping[int, str] = field(default_factory=dict[int, str])
    spans: Sequence[Span] = ()
    scenes: Mapping[int, float] = field(default_factory=dict[int, float])

    def reason(self, candidate: Candidate, rank: int) -> Reason:
        """Why a candidate was found: its meaning is near, or it has the words."""
        dense, sparse = self.enough.shares(candidate)
        if candidate.payload.kind == "lore" and self.enough.lore is not None:
            is_near = (candidate.signals.dense or 0.0) >= self.enough.lore
        else:
            is_near = dense > 0 and dense >= sparse
        kind: ReasonKind = "semantic" if is_near else "words"
        score = round(candidate.score, 4)
        return Reason(kind, score=score, rank=rank, signals=self._matches(candidate))

    def _matches(self, candidate: Candidate) -> tuple[Match, ...]:
        payload, signals, enough = candidate.payload, candidate.signals, self.enough
        found: list[Match] = []
        for signal, kind in _KINDS:
            score: float | None = getattr(signals, signal)
            if score is None:
                continue
            if signal.startswith("dense"):
                strength = (score - enough.unrelated) / (enough.dense - enough.unrelated)
            else:
                strength = score / enough.sparse
            if strength >= WEAK:
                found.append(Match(kind, round(strength, 2)))
        if len(found) > 1 and found[-1].kind == found[-2].kind:  # the question, its two signals
            found[-2:] = [max(found[-2:], key=lambda match: match.strength)]
        scene = self.scenes.get(payload.scene_id.int, 0.0) if payload.scene_id else 0.0
        places: tuple[tuple[MatchKind, float], ...] = (
            ("scene", scene),
            ("event", candidate.joined),
        )
        found += [Match(kind, round(share, 2)) for kind, share in places if share >= WEAK]
        if payload.speaker in self.speakers:
            found.append(Match("speaker", name=self.speakers[payload.speaker]))
        if any(start <= payload.said_at < end for start, end in self.spans):
            found.append(Match("time"))
        return tuple(found)


def scene_strengths(found: Found) -> dict[int, float]:
    """How near each scene is that was found, against the best one, by the number of its id."""
    hits = found.get("scene", ())
    best = max((hit.score for hit in hits), default=0.0)
    return {
        hit.payload.scene_id.int: hit.score / best
        for hit in hits
        if hit.payload.scene_id is not None and best > 0
    }


class SharedWords:
    """Says which words a text shares with what was asked, where a search found it by words.

    The index knows no words: they are compared where texts are shown.
    """

    def __init__(self, asked: str) -> None:
        self._terms = query_terms(asked)

    def told(self, reason: Reason, text: str) -> Reason:
        """The reason, with those words in its signal. O(n) for n characters of the text."""
        if not any(match.kind == "words" for match in reason.signals):
            return reason
        words = shared_words(self._terms, text)
        signals = tuple(
            structs.replace(match, words=words) if match.kind == "words" else match
            for match in reason.signals
        )
        return structs.replace(reason, signals=signals)
