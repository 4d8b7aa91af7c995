"""What is asked for, read out of the text that asks, and the queries that go to the index.

Pure. Figures: docs/explanation/quality.md. The docstring of `search` has the sequence of a search.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from backend.core.logs import get_logger
from backend.memory.embedding.own_models import OwnModels
from backend.memory.embedding.protocol import EmbedderError, QueryEmbedder
from backend.memory.index.protocol import (
    Floats,
    Kind,
    Query,
    Scope,
    ScopePart,
    Sparse,
    VectorName,
)
from backend.memory.indexing.collections import Placement
from backend.memory.search.features import Signal
from backend.memory.search.terms import (
    COMMON_WORDS,
    DEFAULT_LANGUAGE,
    blinded,
    languages_of,
    query_terms,
)
from backend.memory.search.words import (
    Span,
    asks_for_new,
    folded,
    spans_in,
    strip_request,
    words_for,
)
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

log = get_logger(__name__)


async def query_embedder(
    usual: QueryEmbedder | None,
    own: OwnModels | None,
    sealer: Sealer,
    place: Placement,
    notes: list[str],
) -> QueryEmbedder | None:
    """The model whose vectors are in `place`; None, and a note, where a search goes by words.

    `usual` is the installation's model, `own` those of users.
    """
    if place.is_moving:
        notes.append("memory is moving to another embedding model: searched by words only")
        return None
    if not place.is_chosen or own is None:
        return usual
    model = await own.of(sealer, place)
    if model is None or model.embedder is None or model.mark != place.model:
        notes.append("searched by words only: the account's embedding model does not exist")
        return None
    return model.embedder


async def embedded(
    embedder: QueryEmbedder | None, sealer: Sealer, meaning: str, notes: list[str]
) -> Floats | None:
    """The vector of a query, shape (d,); None, and a note, where the model does not answer."""
    if embedder is None:
        return None
    try:
        return await embedder.embed_query(sealer, meaning)
    except EmbedderError as error:
        notes.append("searched by words only: the embedding model did not respond")
        log.warning("memory.not_embedded", problem=error.slug)
        return None


LIMIT = 100
"""Hits of each signal."""

OTHERS = 40
"""Hits of each signal among what is no line of a chat: nobody reads on that far."""

SCENES = 20

_VECTORS: Mapping[Signal, VectorName] = {
    "dense": "dense",
    "sparse": "sparse",
    "dense_window": "dense_window",
    "sparse_window": "sparse_window",
    "scene": "sparse",
}

CONTEXT_WEIGHT = 0.3
"""How much a term of the last exchange counts against one of the line itself."""

CONTEXT_TERMS = 24
"""Terms of the last exchange that are looked for, the longest ones."""

QUESTION_CHARACTERS = 4_000
"""Of a line that is longer, so much of its beginning and its end is looked for: its terms, and with
them what a search costs, would grow with it."""

CONTEXT_CHARACTERS = 8_000
"""The same for the last exchange."""

TIME_CHARACTERS = 1_000
"""The same for the times that are named in it."""

_SHORTEST_PART = 3
"""Letters of a part of a name that stands for all of it: `Elizabeth` of `Elizabeth Bennet`."""

MAX_SENTENCES = 40
"""Sentences of one line that are looked at for questions, the last ones."""

MAX_QUESTIONS = 4
"""Questions of one line that are read by themselves."""

_SENTENCE_END = re.compile(r"([.!?…。！？\n])")  # noqa: RUF001  # Chinese marks
"""Splits a text into sentences and the marks between them."""

_COMMON = COMMON_WORDS | {"may", "mark"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """What a text asks for.

    Attributes:
        meaning: What to embed. Those who take part are not in it: their names are in half of all
            lines, and drown what is asked about them.
        terms: Text whose terms count fully, for lines of a chat: without their names as well.
        lore_terms: The same for everything else, with them.
        questions: The last sentences that ask something, without names.
        context: Text whose terms count for less.
        names: Of those who take part, who is named, in the order of the text.
        spans: Times that it names.
        wants_recent: It asks for what is new.
    """

    meaning: str
    terms: str
    lore_terms: str
    questions: Sequence[str] = ()
    context: str = ""
    names: Sequence[str] = ()
    spans: Sequence[Span] = ()
    wants_recent: bool = False


def read(
    text: str,
    *,
    now: datetime,
    context: str = "",
    cast: Sequence[str] = (),
) -> ParsedQuery:
    """Read what a text asks for.

    `context` was said just before; `cast` are the names of those who speak in what is searched;
    `now` is in the time zone of who asks, for "yesterday".
    """
    text = _ends(text, QUESTION_CHARACTERS)
    context = _ends(context, CONTEXT_CHARACTERS)
    places = {name: _place(name, text) for name in cast}
    named = sorted((name for name in places if places[name] >= 0), key=lambda name: places[name])
    bare = without_names(text, named)
    return ParsedQuery(
        meaning=bare,
        terms=_content(bare),
        lore_terms=_content(text),
        questions=[_content(each) for each in _questions(bare)],
        context=without_names(context, cast) if context else "",
        names=named,
        spans=spans_in(_ends(text, TIME_CHARACTERS), now),
        wants_recent=asks_for_new(folded(_ends(text, TIME_CHARACTERS))),
    )


def plan(
    parsed: ParsedQuery,
    *,
    owner_id: UUID,
    parts: Sequence[ScopePart],
    kinds: Collection[Kind],
    dense: Floats | None,
    blinder: Blinder,
    limit: int = LIMIT,
    audience: Sequence[str] = (),
) -> list[tuple[Signal, Query]]:
    """The queries of a search, for one batch.

    Lines of chats are asked for apart from the rest: there are so many of them that a hundred hits
    would leave no room for anything else.

    `dense` is the vector of `parsed.meaning`, shape (d,), blinded; None without an embedder. No
    `kinds` are all of them. `limit` is for hits of each signal among lines. With an
    `audience` points are found that have one of its words.

    Returns:
        Which signal each query is for. At most seven.
    """
    wanted = set(kinds) or {"message", "lore", "event", "campaign"}
    others = sorted(wanted - {"message", "scene"})
    queries: list[tuple[Signal, Query]] = []

    def add(signal: Signal, near: Floats | Sparse, kinds: Sequence[Kind], limit: int) -> None:
        there = [part for part in parts if not part.kinds or set(part.kinds) & set(kinds)]
        if not there:
            return
        scope = Scope(owner_id=owner_id, parts=there, kinds=kinds, audience=audience)
        queries.append(
            (signal, Query(vector=_VECTORS[signal], near=near, scope=scope, limit=limit))
        )

    if "message" in wanted:
        sparse = blinded(term_weights(parsed, parsed.terms), blinder)
        if dense is not None:
            add("dense", dense, ["message"], limit)
            add("dense_window", dense, ["message"], limit)
        add("sparse", sparse, ["message"], limit)
        add("sparse_window", sparse, ["message"], limit)
        add("scene", sparse, ["scene"], SCENES)
    if others:
        sparse = blinded(term_weights(parsed, parsed.lore_terms), blinder)
        if dense is not None:
            add("dense", dense, others, OTHERS)
        add("sparse", sparse, others, OTHERS)
    return queries


def term_weights(parsed: ParsedQuery, text: str) -> dict[str, float]:
    """Terms with their weights: those of `text` fully, the context's less."""
    said = query_terms(parsed.context)
    # Long words are rare ones, as a rule: what a search costs grows with its terms.
    telling = sorted(said, key=lambda term: (-len(term), term))[:CONTEXT_TERMS]
    weights = {term: said[term] * CONTEXT_WEIGHT for term in telling}
    weights |= query_terms(text)
    return weights


def without_names(text: str, names: Iterable[str]) -> str:
    """A text without names (and their 's); the text itself where nothing else is in it."""
    bare = text
    for name in names:
        bare = _pattern(name).sub(" ", bare)
    return _joined(bare, text)


def _joined(bare: str, text: str) -> str:
    bare = re.sub(" (?=[?!.,;:])", "", " ".join(bare.split()))
    return bare if re.search(r"\w", bare) else text


def _ends(text: str, most: int) -> str:
    """The text; of one that is too long its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2]}\n{text[-most // 2 :]}"


def _content(text: str) -> str:
    """The words of a text that an answer may share; all of them where there are no others."""
    bare = folded(text)
    for words in words_for(bare, languages_of(text) or [DEFAULT_LANGUAGE]):
        for pattern in words.says_nothing:
            bare = pattern.sub(" ", bare)
    return _joined(bare, text)


def _questions(text: str) -> list[str]:
    """Return the last sentences of a text that ask something, folded, without the words that ask.

    O(n) for n characters.
    """
    parts = [*_SENTENCE_END.split(text), ""]
    sentences = [each for each in zip(parts[::2], parts[1::2], strict=True) if each[0].strip()]
    asked: list[str] = []
    for said, end in sentences[-MAX_SENTENCES:]:
        whole = folded(said)
        bare = strip_request(whole)
        if end in {"?", "？"} or bare != whole:  # noqa: RUF001  # the Chinese question mark
            asked.append(bare)
    return asked[-MAX_QUESTIONS:]


def _place(name: str, text: str) -> int:
    """Where a name comes first in a text; -1 where it does not."""
    found = _pattern(name).search(text) if name.strip() else None
    return found.start() if found else -1


def _pattern(name: str) -> re.Pattern[str]:
    """A name, or a part of it that is long enough, as a word of its own.

    In any case of letters, but for names that are common words (Will). Scripts without spaces have
    no words of their own: there any place will do.
    """
    whole = name.strip()
    parts = [part for part in whole.split() if len(part) >= _SHORTEST_PART]
    forms = sorted({whole, *parts}, key=lambda form: (-len(form), form))
    either = "|".join(
        re.escape(form) if form.casefold() in _COMMON else f"(?i:{re.escape(form)})"
        for form in forms
    )
    if whole and not _HAS_NO_SPACES.search(whole):
        either = rf"\b(?:{either})(?:['’]s)?\b"  # noqa: RUF001  # the typographic apostrophe
    return re.compile(either)


_HAS_NO_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
