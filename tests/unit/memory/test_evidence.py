"""Rows that say the same share one place: which one is preferred, and why."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from backend.memory.index.protocol import Payload, point_id
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search.evidence import (
    find_preferences,
    find_summarised,
    join_places,
    list_relatives,
)
from backend.memory.search.features import Candidate
from backend.memory.search.search import choose_best

CHAT = uuid4()
SAID = "The captain buried the brass astrolabe under the chapel bell."
LONGER = f"{SAID} Then he sailed north with seven frightened sailors and a goat."


def row(kind: Any, text: str, *origins: MemoryItem, **changes: Any) -> MemoryItem:
    return MemoryItem(
        kind=kind,
        source_id=uuid4(),
        container_id=CHAT,
        title="Mara" if kind == "message" else "",
        text=text,
        origins=[OriginMessage(each.source_id, CHAT, each.position) for each in origins],
        **changes,
    )


def chosen(
    *rows: MemoryItem, query: str = "", shown: list[UUID] | None = None
) -> dict[str, tuple[str, str]]:
    """Return the texts that give their place, each with the preferred text and the rule."""
    given = find_preferences(list_relatives(rows), query, shown=shown or ())
    return {each.left.text: (each.kept.text, each.because) for each in given.values()}


def found(item: MemoryItem, score: float) -> Candidate:
    payload = Payload(
        owner_id=uuid4(),
        kind=item.kind,
        container_id=CHAT,
        source_id=item.source_id,
        position=0,
    )
    return Candidate(id=point_id(item.kind, item.source_id), payload=payload, score=score)


def test_an_event_gives_its_place_to_a_line_that_says_more() -> None:
    line = row("message", LONGER)
    assert chosen(row("event", SAID, line), line) == {SAID: (LONGER, "says_more")}


def test_a_line_gives_its_place_to_a_shorter_event_with_its_words() -> None:
    line = row("message", f"{SAID} It was there.")
    event = row("event", SAID, line)
    assert chosen(line, event) == {line.text: (SAID, "shorter")}


@pytest.mark.parametrize(
    ("said", "told", "name"),
    [
        ("I killed the old king of Varn.", "The old king of Varn was killed at the ford.", "Mara"),
        ("You killed the old king!", "They say the old king was killed at the ford.", "Mara"),
        ("Maté al viejo rey en Varn.", "Dicen que maté al viejo rey en Varn", "Mara"),
    ],
)
def test_an_event_replaces_a_line_about_its_speaker_if_it_names_the_speaker(
    said: str, told: str, name: str
) -> None:
    line = row("message", said)
    assert said not in chosen(line, row("event", told, line))
    assert said in chosen(line, row("event", f"{name}: {told} So it was, long ago.", line))


def test_a_line_with_a_word_of_its_own_keeps_its_place() -> None:
    line = row("message", f"{SAID} A secret.")
    assert chosen(row("event", SAID, line), line) == {SAID: (line.text, "says_more")}


def test_an_event_with_more_words_of_the_question_is_preferred_to_a_shorter_line() -> None:
    line = row("message", SAID)
    event = row("event", f"{SAID} Treason.", line)
    assert chosen(event, line) == {event.text: (SAID, "shorter")}
    assert chosen(event, line, query="Was it treason?") == {SAID: (event.text, "asked_words")}


def test_a_current_fact_is_preferred_to_its_line_and_to_an_event_of_it() -> None:
    line = row("message", f"{SAID} It was there.")
    fact = row("campaign", SAID, line, is_authoritative=True)
    event = row("event", f"{SAID} Mara saw.", line)
    assert chosen(line, event, fact) == {
        line.text: (SAID, "current"),
        event.text: (SAID, "current"),
    }


def test_a_corrected_fact_keeps_its_place_next_to_the_outdated_line() -> None:
    line = row("message", LONGER)
    corrected = SAID.replace("bell", "altar")
    assert chosen(line, row("campaign", corrected, line, is_authoritative=True)) == {}


def test_a_line_with_a_word_of_its_own_keeps_its_place_next_to_a_fact() -> None:
    line = row("message", "I gave the sword to Bram, then Bram lost it at dice to Orla.")
    fact = "Mara gave the sword to Bram, who lost it at dice."
    authoritative = row("campaign", fact, line, is_authoritative=True)
    assert chosen(line, authoritative, query="Where is the sword?") == {}


def test_a_long_line_keeps_its_place_next_to_a_fact() -> None:
    line = row("message", LONGER)
    assert chosen(line, row("campaign", SAID, line, is_authoritative=True)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "Nobody rings there, so the old instrument is safe from thieves.",  # other words
        "The captain buried 12 brass astrolabes under the chapel bell.",  # a number
    ],
)
def test_an_event_that_says_something_else_keeps_its_place(text: str) -> None:
    line = row("message", LONGER)
    assert chosen(line, row("event", text, line)) == {}


def test_an_event_keeps_the_words_of_the_question_that_its_line_lacks() -> None:
    line = row("message", LONGER)
    event = row("event", f"{SAID} Treason.", line)
    assert chosen(line, event) == {event.text: (LONGER, "says_more")}
    assert chosen(line, event, query="Was it treason?") == {}


def test_equal_texts_without_a_common_message_keep_their_places() -> None:
    assert chosen(row("message", SAID), row("event", SAID, row("message", SAID))) == {}


def test_a_whisper_keeps_its_place_next_to_a_public_event() -> None:
    whisper = row("message", SAID, audience=f"|{uuid4()}|")
    assert chosen(whisper, row("event", SAID, whisper)) == {}


def test_a_pinned_event_is_preferred_and_keeps_its_place() -> None:
    line = row("message", SAID)
    event = row("event", f"{SAID} Mara saw.", line)
    assert chosen(line, event) == {event.text: (SAID, "shorter")}
    assert chosen(line, event, shown=[event.source_id]) == {SAID: (event.text, "in_prompt")}
    longer = row("message", LONGER)
    pinned = row("event", SAID, longer)
    assert chosen(longer, pinned, shown=[pinned.source_id]) == {}


def test_the_reason_names_the_row_that_is_left() -> None:
    line = row("message", f"{SAID} It was there.")
    event = row("event", f"{SAID} Mara.", line)
    fact = row("campaign", SAID, line, is_authoritative=True)
    given = chosen(event, line, fact)
    assert {kept for kept, _ in given.values()} == {SAID}


def test_the_preferred_row_gets_the_best_place_of_those_that_it_replaces() -> None:
    line = row("message", LONGER)
    event, other = row("event", SAID, line), row("message", "It rains on the harbour.")

    hits = [found(event, 0.9), found(other, 0.5), found(line, 0.1)]
    joined = join_places(hits, find_preferences(list_relatives([event, other, line]), ""))
    assert [(each.payload.source_id, each.score) for each in joined] == [
        (line.source_id, 0.9),
        (other.source_id, 0.5),
    ]
    assert join_places(hits, {}) == hits


def test_a_row_keeps_its_place_if_the_preferred_one_is_dropped_as_a_repetition() -> None:
    line = row("message", LONGER)
    event, other = row("event", SAID, line), row("message", LONGER.replace("seven", "nine"))
    hits = [found(other, 0.9), found(event, 0.8), found(line, 0.1)]
    given = find_preferences(list_relatives([event, other, line]), "")
    same = np.array([1, 0], dtype=np.float32)
    vectors = {hits[0].id: same, hits[2].id: same}
    assert (
        choose_best(hits, given, breadth=0, vectors={}, count=3, duplicate=0.95)[0][1].id
        == hits[2].id
    )
    chosen, left = choose_best(hits, given, breadth=0, vectors=vectors, count=3, duplicate=0.95)
    assert [each.id for each in chosen] == [hits[0].id, hits[1].id]
    assert left == {}


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("Mira did not open the north gate.", "Mira opened the north gate."),
        ("Mira didn't open the north gate.", "Mira opened the north gate."),
        ("Mira öffnete das Nordtor nicht.", "Mira öffnete das Nordtor."),
        ("Мира не открыла северные ворота.", "Мира открыла северные ворота."),
        ("昨天晚上我没有把剑交给国王", "昨天晚上我把剑交给国王"),
        ("昨夜私は王に剣を渡さなかった", "昨夜私は王に剣を渡した"),
        ("어젯밤 왕에게 검을 주지 않았다", "어젯밤 왕에게 검을 주었다"),
    ],
)
def test_opposites_keep_their_places(line: str, event: str) -> None:
    said = row("message", line)
    assert chosen(said, row("event", event, said)) == {}
    assert find_summarised([[row("event", event)]], line, "") == frozenset()


def test_a_line_keeps_its_place_if_the_last_of_a_chain_lacks_a_word_of_it() -> None:
    line = row("message", SAID)
    event = row("event", f"{SAID} Treason, murder, arson, revenge.", line)
    less = row("event", event.text.replace("brass ", ""), line)
    assert chosen(line, event) == {SAID: (event.text, "says_more")}
    assert chosen(line, event, less) == {event.text: (less.text, "shorter")}


def test_a_sentence_ends_in_other_scripts_too() -> None:
    event = row("event", "मीरा ने पुराने मंदिर में चाँदी की चाबी छिपाई")
    parts = ["मीरा ने गाना गाया", "पुराने मंदिर में चाँदी थी", "उसने की चाबी छिपाई"]
    assert find_summarised([[event]], "\u0964 ".join(parts), "") == frozenset()
    assert find_summarised([[event]], f"{parts[0]}\u0964 {event.text}\u0964", "") == {
        event.source_id
    }


@pytest.mark.parametrize(
    ("said", "summary", "is_told"),
    [
        ("I will betray the queen.", "Mara will betray the queen.", True),
        ("I will betray the queen.", "Kael will betray the queen.", False),
        ("The old queen will be betrayed.", "Kael fears the old queen will be betrayed.", True),
        ("I will betray the queen at Saint Brann.", "Mara will betray the queen.", False),
    ],
)
def test_a_summary_replaces_a_line_if_it_has_all_of_its_words_and_its_speaker(
    said: str, summary: str, *, is_told: bool
) -> None:
    line = row("message", said)
    assert (find_summarised([[line]], summary, "") == {line.source_id}) is is_told


def test_one_sentence_of_a_summary_has_to_say_it() -> None:
    line, event = row("message", LONGER), row("event", SAID)
    fact = row("campaign", SAID, is_authoritative=True)
    whole = f"It rained for days. {SAID} No one knew."
    assert find_summarised([[line], [event], [fact]], whole, "") == {event.source_id}
    scattered = "The captain sang.\nA brass bell rang.\nSomeone buried an astrolabe.\nThe chapel!"
    assert find_summarised([[event]], scattered, "") == frozenset()
    secret = row("event", f"{SAID} Treason.")
    assert find_summarised([[secret]], whole, "Was it treason?") == frozenset()


def test_a_summary_has_to_say_what_another_row_has_given_its_place_for() -> None:
    line = row("message", "The cellar vault opens with the word Zerbrax.")
    event = row("event", f"Mara told Tom beneath the burning old mill: {line.text}", line)
    (given,) = find_preferences(list_relatives([event, line]), "").values()
    assert (given.left, given.kept) == (line, event)
    summary = "Mara told Tom beneath the burning old mill how the cellar vault opens with a word."
    assert find_summarised([[event]], summary, "") == {event.source_id}
    assert find_summarised([[event, line]], summary, "") == frozenset()
    assert find_summarised([[event, line]], event.text, "") == {event.source_id}
