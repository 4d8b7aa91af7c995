"""Queries: their terms, and how much of these a text has."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta, timezone
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.memory.index.protocol import Hit, Payload, ScopePart, Sparse
from backend.memory.search import query as parsed_query
from backend.memory.search.features import (
    SignalHits,
    WordMatch,
    apply_matches,
    find_aboutness,
    read_words,
)
from backend.memory.search.query import MAX_QUESTIONS, ParsedQuery, find_spans, parse_query
from backend.memory.search.terms import build_sparse_vector, count_terms, query_terms
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer

NOW = datetime(2023, 6, 15, 18, 30, tzinfo=UTC)
OWNER, CHAT = uuid4(), uuid4()
BLINDER = Blinder(Sealer(OWNER, {1: bytes(32)}, user_key=bytes(32)))
DENSE = np.ones(4, dtype=np.float32)


def read(text: str, *cast: str, context: str = "") -> ParsedQuery:
    return parsed_query.parse_query(text, cast=cast, now=NOW, context=context)


def test_names_are_in_the_order_of_the_question() -> None:
    cast = ["Mira", "Ben", "Ada"]
    assert read("What does Ben think of Mira's plan?", *cast).names == ["Ben", "Mira"]
    assert read("What does Mira think of Ben's plan?", *cast).names == ["Mira", "Ben"]


def test_names_of_the_cast_are_not_search_terms() -> None:
    reading = read("Where did Mira hide Ben's key?", "Mira", "Ben", "Cleo")
    assert reading.names == ["Mira", "Ben"]
    assert reading.meaning == "Where did hide key?"


def test_a_name_alone_is_searched_for() -> None:
    assert read("Mira?", "Mira").meaning == "Mira?"


def test_a_name_is_a_word_of_its_own_in_any_case() -> None:
    assert read("She admires the miracle.", "Mira").names == []
    assert read("what did MIRA say", "Mira").names == ["Mira"]


def test_a_name_that_is_a_common_word_is_a_name_when_it_is_written_as_one() -> None:
    assert read("what will the king do", "Will").names == []
    assert read("what did Will do", "Will").names == ["Will"]


def test_a_part_of_a_name_means_the_whole_name() -> None:
    reading = read("What does Elizabeth fear?", "Elizabeth of Bennet")
    assert reading.names == ["Elizabeth of Bennet"]
    assert reading.meaning == "What does fear?"
    assert read("one of them", "Elizabeth of Bennet").names == []


def test_names_in_scripts_without_spaces_are_found_anywhere() -> None:
    assert read("昨日美玲说了什么", "美玲").names == ["美玲"]


def test_lore_is_looked_for_with_the_names_and_lines_without() -> None:
    reading = read("How many swords has Mira?", "Mira")
    assert reading.terms == "swords has?"
    assert reading.lore_terms == "swords has mira?"


def test_a_query_of_nothing_but_asking_keeps_its_words() -> None:
    assert read("how many").terms == "how many"


def test_words_of_the_context_weigh_less() -> None:
    reading = read("the bridge", context="the bridge and the tower")
    weights = parsed_query.weigh_terms(reading, reading.terms)
    assert weights["bridg"] == 1
    assert weights["tower"] == parsed_query.CONTEXT_WEIGHT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the last king", False),
        *(
            (text, True)
            for text in (
                *("what did we do last time", "what was recently found", "Zuletzt", "上次"),
                *("La dernière fois", "La última vez", "Da última vez", "В последний раз"),
                *("この前", "지난번에"),
            )
        ),
    ],
)
def test_a_query_may_ask_for_recent_lines(text: str, expected: bool) -> None:
    assert read(text).wants_recent is expected


def planned(
    kinds: tuple[str, ...] = (), dense: np.ndarray[tuple[int], np.dtype[np.float32]] | None = DENSE
) -> list[tuple[str, str, list[str]]]:
    plan = parsed_query.plan_queries(
        read("Where is the key of Mira?", "Mira"),
        owner_id=OWNER,
        parts=[ScopePart(containers=[CHAT])],
        kinds=kinds,  # type: ignore[arg-type]  # literals
        dense=dense,
        blinder=BLINDER,
    )
    assert all(query.scope.owner_id == OWNER for _, query in plan)
    return [(signal, query.vector, list(query.scope.kinds)) for signal, query in plan]


def test_lines_are_asked_for_apart_from_the_rest() -> None:
    assert planned() == [
        ("dense", "dense", ["message"]),
        ("dense_window", "dense_window", ["message"]),
        ("sparse", "sparse", ["message"]),
        ("sparse_window", "sparse_window", ["message"]),
        ("dense", "dense", ["campaign", "event", "lore"]),
        ("sparse", "sparse", ["campaign", "event", "lore"]),
    ]


def test_only_requested_kinds_are_queried() -> None:
    assert planned(("lore",)) == [("dense", "dense", ["lore"]), ("sparse", "sparse", ["lore"])]
    assert len(planned(("message",))) == 4


def test_without_a_vector_terms_do_it_alone() -> None:
    assert {vector for _, vector, _ in planned(dense=None)} == {"sparse", "sparse_window"}


def test_a_query_holds_no_word_but_keyed_ids() -> None:
    plan = parsed_query.plan_queries(
        read("key"), owner_id=OWNER, parts=[ScopePart(containers=[CHAT])], kinds=["lore"],
        dense=None, blinder=BLINDER,
    )  # fmt: skip
    near = plan[0][1].near
    assert isinstance(near, Sparse)
    assert BLINDER.term_id("key") in near.ids.tolist()


def day(year: int, month: int, number: int) -> int:
    return int(datetime(year, month, number, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("on 7 May 2023", day(2023, 5, 7), day(2023, 5, 8)),
        ("on May 7th, 2023", day(2023, 5, 7), day(2023, 5, 8)),
        ("2023-05-07", day(2023, 5, 7), day(2023, 5, 8)),
        ("the 3rd of April", day(2023, 4, 3), day(2023, 4, 4)),
        ("in May 2022", day(2022, 5, 1), day(2022, 6, 1)),
        ("in May", day(2023, 5, 1), day(2023, 6, 1)),
        ("in December", day(2022, 12, 1), day(2023, 1, 1)),
        ("in Sept.", day(2022, 9, 1), day(2022, 10, 1)),
        ("during 2021", day(2021, 1, 1), day(2022, 1, 1)),
        ("yesterday", day(2023, 6, 14), day(2023, 6, 15)),
        ("today", day(2023, 6, 15), day(2023, 6, 16)),
        ("three days ago", day(2023, 6, 11), day(2023, 6, 13)),
        ("this week", day(2023, 6, 8), day(2023, 6, 16)),
        ("last week", day(2023, 6, 5), day(2023, 6, 16)),
    ],
)
def test_times_are_understood(text: str, start: int, end: int) -> None:
    assert find_spans(f"What happened {text}?", NOW) == [(start, end)]


QUESTIONS = tomllib.loads(
    (Path(__file__).parents[2] / "fixtures/questions/questions.toml").read_text(encoding="utf-8")
)
LANGUAGES = [language for language, told in QUESTIONS.items() if isinstance(told, dict)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_times_are_understood_in_every_language(language: str) -> None:
    now = datetime.combine(QUESTIONS["asked_on"], time(18), UTC)
    for day, (_, question) in zip(QUESTIONS["said"], QUESTIONS[language]["timed"], strict=True):
        said_at = datetime.combine(day, time(12), UTC).timestamp()
        [(start, end)] = find_spans(question, now)
        assert start <= said_at < end, question
    untimed = [
        *QUESTIONS[language]["others"],
        *(asked for _, asked in QUESTIONS[language]["plain"]),
    ]
    assert [text for text in untimed if find_spans(text, now)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of_asking_find_nothing(language: str) -> None:
    others = count_terms(" ".join(QUESTIONS[language]["others"]))
    for _, question in QUESTIONS[language]["plain"]:
        terms = query_terms(read(question).terms)
        assert not [term for term in terms if term in others and len(term) > 2], question


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("vorgestern", day(2023, 6, 13), day(2023, 6, 14)),
        ("vor ein paar Tagen", day(2023, 6, 11), day(2023, 6, 13)),
        ("am 07.05.2023", day(2023, 5, 7), day(2023, 5, 8)),
        ("le 1er mai", day(2023, 5, 1), day(2023, 5, 2)),
        ("aujourd’hui", day(2023, 6, 15), day(2023, 6, 16)),
        ("l'altro ieri", day(2023, 6, 13), day(2023, 6, 14)),
        ("il 7 maggio 2023", day(2023, 5, 7), day(2023, 5, 8)),
        ("неделю назад", day(2023, 6, 5), day(2023, 6, 11)),
        ("２０２３年５月７日", day(2023, 5, 7), day(2023, 5, 8)),
        ("十一月", day(2022, 11, 1), day(2022, 12, 1)),
        ("一昨日", day(2023, 6, 13), day(2023, 6, 14)),
        ("大前天", day(2023, 6, 12), day(2023, 6, 13)),
        ("11월에", day(2022, 11, 1), day(2022, 12, 1)),
    ],
)
def test_times_are_understood_as_their_language_writes_them(
    text: str, start: int, end: int
) -> None:
    assert find_spans(text, NOW) == [(start, end)]


@pytest.mark.parametrize(
    "text",
    [
        "May I come in?",
        "He sat down for a second on Mars.",
        "Sie mag den Tag und die Woche.",
        "Il marche un jour sans fin.",
        "Trinta dias e trinta noites.",
        "Тридцать лет и три года.",
        "日が沈む前に門を閉めて。",
        "天上有月。",
        "세 사람이 왔다.",
        "She may march on.",
        "the 31 February 2023",
        "2023 soldiers",
        "the week",
        "",
    ],
)
def test_words_that_are_no_times_are_ignored(text: str) -> None:
    assert find_spans(text, NOW) == []


def test_a_year_of_a_date_is_not_a_time_of_its_own() -> None:
    assert find_spans("in May 2022 or in 2021", NOW) == [
        (day(2022, 5, 1), day(2022, 6, 1)),
        (day(2021, 1, 1), day(2022, 1, 1)),
    ]


def test_yesterday_is_in_the_time_zone_of_the_user() -> None:
    east = timezone(timedelta(hours=10))
    spans = find_spans("yesterday", NOW.astimezone(east))
    start = datetime(2023, 6, 15, tzinfo=east)
    assert spans == [(int(start.timestamp()), int(start.timestamp()) + 86_400)]


@given(st.text(max_size=80), st.lists(st.text(max_size=12), max_size=4))
def test_any_text_is_a_query(text: str, cast: list[str]) -> None:
    reading = parsed_query.parse_query(text, cast=cast, now=NOW)
    assert set(reading.names) <= set(cast)
    assert bool(reading.meaning.strip()) >= bool(text.strip())
    assert all(start < end for start, end in reading.spans)


@given(st.text(st.sampled_from("0123456789 -ago dys wekmonthsMayinlt"), max_size=40))
def test_no_figure_is_too_much(text: str) -> None:
    assert all(start < end for start, end in find_spans(text, NOW))


IN_MARCH = datetime(2026, 3, 4, tzinfo=UTC)
KING = "The king is Ironcrown."
ENOUGH_WORDS = 4.35
"""BM25 that brings a memory up if there is no embedding model."""


def matched(line: str, *texts: str, cast: Sequence[str] = (), context: str = "") -> list[WordMatch]:
    parsed = parse_query(line, now=IN_MARCH, cast=cast, context=context)
    vectors: dict[UUID, Sparse] = {uuid4(): build_sparse_vector(text, BLINDER) for text in texts}
    return list(read_words(parsed, BLINDER).match(vectors).values())


@pytest.mark.parametrize("others", [0, 1, 2, 4, 19])
def test_a_word_is_as_rare_in_a_young_world_as_in_a_large_one(others: int) -> None:
    kings = [f"King number {number} is dead." for number in range(others)]
    king, *_ = matched("Who is the king?", KING, *kings)
    assert king.bm25 > ENOUGH_WORDS


def test_the_lines_before_say_nothing_of_how_much_a_text_has() -> None:
    plain = matched("Who is the king?", KING)
    assert matched("Who is the king?", KING, context="The king! Long live the king!") == plain


@pytest.mark.parametrize(
    "line",
    [
        "Who is the king?",
        'I bow, and wait until he looks at me. "Tell me, who is the king?" I ask at last.',
        "Mira, who is the king?",
        "He sits down, and I do, too. Tell me about the king, Mira",
        "Who are the kings of this land, and what do they want? I drink my wine. Who is king?",
    ],
)
def test_a_question_is_about_a_text_that_has_its_words(line: str) -> None:
    assert matched(line, KING, cast=["Mira"])[0].aboutness >= 1


@pytest.mark.parametrize(
    "line",
    [
        "The king of my village sold me a goat, three hens and a barrel of salted herring.",
        "I don't know what to say.",
        "He laughs like a king and pours himself another cup.",
    ],
)
def test_a_line_that_has_one_word_of_a_text_is_not_about_it(line: str) -> None:
    assert matched(line, KING, "Nobody knows a cure.")[0].aboutness < 1


def test_a_common_word_says_less_than_a_rare_one() -> None:
    rare, common = (
        matched(f"Is there a {word} near the old house?", f"A {word}.")[0].aboutness
        for word in ("lighthouse", "table")
    )
    assert rare > 1 > common


def test_other_languages_have_words_too() -> None:
    texts = ["Die Königin heißt Brunhild.", "王の名前は鉄冠です。"]
    queen, _ = matched("Wie heißt die Königin?", *texts)
    _, king = matched("王の名前は何ですか？", *texts)
    assert min(queen.aboutness, king.aboutness) >= 1


def test_a_line_without_words_is_about_nothing() -> None:
    assert matched("...?!", KING)[0].aboutness == 0


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("Erzähl mir von dem Leuchtturm.", "Der Leuchtturm ist verflucht."),
        ("Parle-moi du phare.", "Le phare est maudit."),
        ("Háblame del faro.", "El faro está maldito."),
        ("Расскажи о маяке.", "Маяк проклят."),
        ("灯台について教えて。", "灯台は呪われている。"),
    ],
)
def test_a_request_is_a_question_in_any_language(line: str, text: str) -> None:
    assert len(parse_query(line, now=IN_MARCH).questions) == 1
    assert matched(line, text)[0].aboutness >= 1


def test_questions_beyond_the_last_ones_are_not_read() -> None:
    generator = random.Random(1)
    line = "?".join(str(generator.random()) for _ in range(MAX_QUESTIONS * 100))
    assert len(parse_query(line, now=IN_MARCH).questions) == MAX_QUESTIONS


def test_a_row_of_several_chunks_counts_by_its_best_one() -> None:
    row = uuid4()
    chunks = [
        Payload(owner_id=row, kind="lore", container_id=row, source_id=row, chunk=number)
        for number in range(2)
    ]
    hits = [Hit(uuid4(), 3.0, chunk) for chunk in chunks]
    matches = {
        hits[0].id: WordMatch(bm25=5.0, aboutness=0.4),
        hits[1].id: WordMatch(bm25=2.0, aboutness=1.2),
    }
    found: SignalHits = {"sparse": hits}
    assert find_aboutness(found, matches) == {row.int: 1.2}
    assert [hit.score for hit in apply_matches(found, matches)["sparse"]] == [5.0, 3.0]
