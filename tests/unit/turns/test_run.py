"""The events of a turn, and the joint of a continued reply."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.turns.run.events import PlayEvent, Progress, SpokenKind, Transcript, TurnEvent
from backend.turns.run.reply_text import find_joint

KINDS: st.SearchStrategy[SpokenKind] = st.sampled_from(["thinking", "text"])
PIECES = st.lists(st.tuples(KINDS, st.text(max_size=12)), max_size=30)
STEPS = st.lists(
    st.tuples(KINDS, st.text(max_size=12))
    | st.tuples(st.just("event"), st.sampled_from(["mood.changed", "tool.used"]))
    | st.tuples(st.just("event"), st.sampled_from(["text.reset", "thinking.reset"])),
    max_size=30,
)

Pieces = list[tuple[SpokenKind, str]]
Steps = list[tuple[str, str]]


def transcript_of(steps: Pieces | Steps) -> Transcript:
    transcript = Transcript()
    for kind, text in steps:
        take(transcript, kind, text)
    return transcript


def take(transcript: Transcript, kind: str, text: str) -> None:
    """Append text or an event. A reset drops the last half of the text."""
    if kind == "event":
        number = len(transcript.events)
        if text.endswith(".reset"):
            number = reset(transcript, text, since=transcript.length // 2)
        transcript.append_event(text, {"number": number})
    else:
        transcript.append("text" if kind == "text" else "thinking", text)


def reset(transcript: Transcript, name: str, *, since: int) -> int:
    """Drop the text after an offset, and return the length of the rest."""
    dropped: SpokenKind = "text" if name == "text.reset" else "thinking"
    transcript.drop(dropped, since=since)
    return len(transcript.join(dropped))


def said(events: list[TurnEvent]) -> Pieces:
    """The texts of the deltas. Neighbours of one kind are joined."""
    runs: Pieces = []
    for event in events:
        kind, _, word = event.name.partition(".")
        if word != "delta":
            continue
        assert kind in {"thinking", "text"}
        if runs and runs[-1][0] == kind:
            runs[-1] = runs[-1][0], runs[-1][1] + event.data["text"]
        else:
            runs.append(("thinking" if kind == "thinking" else "text", event.data["text"]))
    return runs


def closed(progress: Progress, *, usage: bool, saved: bool, failed: bool) -> Progress:
    progress.usage = {"prompt_tokens": 1} if usage else None
    progress.saved = {"message_id": "m"} if saved else None
    if failed:
        progress.failed = {"turn_id": "t"}
    else:
        progress.completed = {"turn_id": "t"}
    return progress


@given(PIECES, st.integers(0, 400))
def test_texts_before_and_after_an_offset_make_the_whole(pieces: Pieces, offset: int) -> None:
    transcript = transcript_of(pieces)
    whole = "".join(text for _, text in pieces)
    assert "".join(data["text"] for _, data, _ in transcript.since(offset)) == whole[offset:]
    for name, data, end in transcript.since(offset):
        assert whole[end - len(data["text"]) : end] == data["text"]
        assert name in {"thinking.delta", "text.delta"}


@given(PIECES)
def test_each_kind_is_kept_apart_and_in_order(pieces: Pieces) -> None:
    transcript = transcript_of(pieces)
    kinds: tuple[SpokenKind, ...] = ("thinking", "text")
    for kind in kinds:
        assert transcript.join(kind) == "".join(text for each, text in pieces if each == kind)
    assert transcript.length == sum(len(text) for _, text in pieces)


def stored(live: Transcript) -> Transcript:
    """The transcript that another process reads."""
    segments: Any = msgspec.json.decode(msgspec.json.encode(live.segments()))
    events = msgspec.json.decode(msgspec.json.encode(live.events), type=list[PlayEvent])
    return Transcript.restore(
        segments, thinking=live.join("thinking"), text=live.join("text"), events=events
    )


@given(STEPS)
def test_a_transcript_restored_from_storage_is_the_same(steps: Steps) -> None:
    live = transcript_of(steps)
    other = stored(live)
    for offset in range(live.length + 2):
        assert list(other.since(offset)) == list(live.since(offset))
    assert other.segments() == live.segments()
    assert other.events == live.events


@given(STEPS, STEPS)
def test_a_turn_that_moves_to_another_process_keeps_counting(steps: Steps, more: Steps) -> None:
    whole, other = transcript_of(steps + more), stored(transcript_of(steps))
    for kind, text in more:
        take(other, kind, text)
    for offset in range(whole.length + 2):
        assert list(other.since(offset)) == list(whole.since(offset))
    assert other.join("text") == whole.join("text")


@given(STEPS, STEPS)
def test_dropped_text_is_not_in_the_reply_and_keeps_its_offsets(steps: Steps, more: Steps) -> None:
    transcript = transcript_of(steps)
    heard = list(Progress({}, {}, transcript).events_after(0))
    length, thoughts = transcript.length, transcript.join("thinking")
    reset(transcript, "text.reset", since=0)
    transcript.append_event("text.reset", {"length": 0})
    assert transcript.length == length + 1
    assert (transcript.join("text"), transcript.join("thinking")) == ("", thoughts)
    for kind, text in more:
        take(transcript, kind, text)
    progress = Progress({}, {}, transcript)
    rest = list(progress.events_after(heard[-1].id))
    assert rest[0].name == "text.reset"
    kept = [each.data["text"] for each in progress.events_after(0) if each.name == "text.delta"]
    assert "".join(kept) == transcript.join("text")


@given(STEPS, st.data())
def test_a_client_that_applies_resets_has_the_reply_after_any_reconnect(
    steps: Steps, data: st.DataObject
) -> None:
    """It follows the turn live up to some step, and the rest of the turn later, at once."""
    transcript, has = Transcript(), {"text": "", "thinking": ""}
    last_id = 0

    def hear() -> int:
        heard = last_id
        for event in Progress({}, {}, transcript).events_after(last_id):
            kind, _, what = event.name.partition(".")
            heard = event.id
            if what == "delta":
                has[kind] += event.data["text"]
            elif what == "reset":
                has[kind] = has[kind][: event.data["number"]]
        return heard

    for kind, text in steps:
        take(transcript, kind, text)
        if data.draw(st.booleans()):
            last_id = hear()
    hear()
    assert has == {"text": transcript.join("text"), "thinking": transcript.join("thinking")}


@given(STEPS, st.data())
def test_events_are_sent_once_and_in_order_after_any_reconnect(
    steps: Steps, data: st.DataObject
) -> None:
    whole = transcript_of(steps)
    everything = list(Progress({}, {}, whole).events_after(0))
    cut = data.draw(st.integers(0, len(everything)))
    last_id = everything[cut - 1].id if cut else 0
    assert everything[cut:] == list(Progress({}, {}, stored(whole)).events_after(last_id))
    ids = [event.id for event in everything]
    assert all(one < other for one, other in pairwise(ids))


def test_a_question_comes_when_the_turn_is_stored_as_waiting_or_ends() -> None:
    progress = Progress({}, {}, transcript_of([("text", "A fork.")]))
    progress.transcript.append_event("turn.awaiting_choice", {})
    last_id = list(progress.events_after(0))[-1].id
    assert not list(progress.events_after(last_id))
    stopped = closed(replace(progress), usage=False, saved=True, failed=False)
    names = [each.name for each in stopped.events_after(last_id)]
    assert names == ["turn.awaiting_choice", "message.saved", "turn.completed"]
    progress.is_waiting = True
    (question,) = progress.events_after(last_id)
    assert question.name == "turn.awaiting_choice"
    progress.is_waiting = False
    progress.transcript.append_event("turn.choice_made", {})
    names = [each.name for each in progress.events_after(last_id)]
    assert names == ["turn.awaiting_choice", "turn.choice_made"]


@given(PIECES, st.booleans(), st.booleans(), st.booleans())
def test_ids_count_up_and_no_event_has_another_one_s(
    pieces: Pieces, usage: bool, saved: bool, failed: bool
) -> None:
    progress = closed(
        Progress({}, {}, transcript_of(pieces)), usage=usage, saved=saved, failed=failed
    )
    ids = [event.id for event in progress.events_after(0)]
    assert ids[:2] == [1, 2]
    assert all(one < other for one, other in pairwise(ids))


@given(PIECES, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_a_reconnecting_client_gets_the_missing_events_once(
    pieces: Pieces, usage: bool, saved: bool, failed: bool, data: st.DataObject
) -> None:
    """The first part is heard piece by piece, as it is said; then comes a cut."""
    progress = Progress({"turn_id": "t"}, {"prompt": 3})
    heard: list[TurnEvent] = []
    last_id = 0
    for kind, text in pieces:
        progress.transcript.append(kind, text)
        if data.draw(st.booleans()):
            heard += progress.events_after(last_id)
            last_id = heard[-1].id if heard else 0
    closed(progress, usage=usage, saved=saved, failed=failed)
    heard += progress.events_after(last_id)
    cut = data.draw(st.integers(0, len(heard)))
    before = heard[:cut]
    after = list(progress.events_after(before[-1].id if before else 0))
    everything = list(progress.events_after(0))
    assert said(before + after) == said(everything) == said(heard)
    others = [event for event in everything if not event.name.endswith(".delta")]
    assert [e for e in before + after if not e.name.endswith(".delta")] == others
    assert not list(progress.events_after(heard[-1].id))


@given(PIECES, PIECES, st.integers(0, 60))
def test_a_client_ahead_of_the_stored_events_gets_nothing_twice(
    pieces: Pieces, more: Pieces, behind: int
) -> None:
    """It moves from the process of the turn to one that reads stored events."""
    live = Progress({}, {}, transcript_of(pieces))
    had = list(live.events_after(0))
    whole = transcript_of(pieces + more)
    length = max(0, live.transcript.length - behind)
    behind_it = Progress({}, {}, cut_off(whole, length))
    early = list(behind_it.events_after(had[-1].id))
    last_id = early[-1].id if early else had[-1].id
    rest = list(Progress({}, {}, whole).events_after(last_id))
    assert said(had + early + rest) == said(list(Progress({}, {}, whole).events_after(0)))


@given(PIECES, PIECES)
def test_a_client_that_heard_more_than_a_crash_left_hears_of_the_end(
    pieces: Pieces, lost: Pieces
) -> None:
    live = Progress({}, {}, transcript_of(pieces + lost))
    last_id = list(live.events_after(0))[-1].id
    left = Progress({}, {}, transcript_of(pieces), is_cut_off=True)
    closed(left, usage=False, saved=True, failed=True)
    end = list(left.events_after(last_id))
    assert [event.name for event in end] == ["message.saved", "turn.failed"]
    assert last_id < end[0].id
    assert not list(left.events_after(end[-1].id))


@given(PIECES, st.booleans())
def test_places_stay_the_same_when_the_text_is_gone(pieces: Pieces, text_stays: bool) -> None:
    """A reply was deleted, or thoughts were all that there was."""
    live = closed(Progress({}, {}, transcript_of(pieces)), usage=True, saved=False, failed=True)
    transcript = live.transcript
    text = transcript.join("text") if text_stays else ""
    left = Transcript.restore(transcript.segments(), thinking="", text=text)
    rest = closed(Progress({}, {}, left), usage=True, saved=False, failed=True)
    for event in live.events_after(0):
        after = list(rest.events_after(event.id))
        expected = [e for e in live.events_after(event.id) if not e.name.endswith(".delta")]
        assert [e for e in after if not e.name.endswith(".delta")] == expected
        if text_stays:
            assert "".join(e.data["text"] for e in after if e.name == "text.delta") == "".join(
                e.data["text"] for e in live.events_after(event.id) if e.name == "text.delta"
            )


def test_an_event_is_encoded_as_a_server_sent_event() -> None:
    event = TurnEvent(7, "text.delta", {"text": "one\ntwo\r\u2028“three”"})
    head, data, *end = event.encode().split(b"\ndata: ")
    assert head == b"id: 7\nevent: text.delta"
    assert data.endswith(b"\n\n")
    assert b"\n" not in data[:-2]
    assert b"\r" not in data
    assert msgspec.json.decode(data) == event.data
    assert not end


def test_before_the_context_is_ready_only_the_start_is_sent() -> None:
    progress = Progress({"turn_id": "t"})
    progress.transcript.append("text", "too early")
    assert [event.name for event in progress.events_after(0)] == ["turn.started"]
    assert not list(progress.events_after(1))


def cut_off(transcript: Transcript, length: int) -> Transcript:
    """The transcript as it was stored after the first `length` characters."""
    left = Transcript()
    for name, data, end in transcript.since(0):
        text = data["text"]
        begin = end - len(text)
        left.append("text" if name == "text.delta" else "thinking", text[: max(0, length - begin)])
    return left


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ("He opens the door.", "Behind it is a room."),
        ("He opens the", "door."),
        ("*He nods.*", "“Well?”"),
        ("“Well?”", "he asks."),
        ("„Nun?“", "Er nickt."),
        ("«Bien.»", "Il part."),
        ('"Well?"', '"No."'),
        ("*He nods.*", "*He goes.*"),
        ("Five", "(or six) came."),
        ("He said:", "'No.'"),
        ("…", "and then"),
    ],
)
def test_a_space_is_put_between_two_words(before: str, more: str) -> None:
    assert find_joint(before, more) == " "


@pytest.mark.parametrize(("before", "more"), [
    ("", "He nods."), ("He nods. ", "He goes."), ("He nods.", "\n\nHe goes."),
    ("He nods", ", and goes."), ("He nods", "… and goes."), ("I don", "'t know."),
    ("I don", "’t know."), ("*He nods", "*"), ('He says "no', '"'), ("„Nun", "“, sagt er."),
    ("“Well", "”, he says."), ("»Nun", "«, sagt er."), ("He says: “", "No."),
    ('He says "', 'No."'), ("He says: **", "No.**"), ("Five (", "or six)"),
    ("Five (or six", ") came."), ("A well-", "known man"), ("He was—", "gone."),
    ("He was", "—gone."), ("彼は言った。", "「行こう」"), ("ไม่เป็น", "ไร"), ("“" * 1_000_000, "No."),
], ids=lambda text: text[-20:])  # fmt: skip
def test_texts_that_belong_together_get_no_space(before: str, more: str) -> None:
    assert find_joint(before, more) == ""


def test_text_after_a_block_of_code_begins_a_line() -> None:
    assert find_joint("```\nroll 2d6\n```", "He rolls.") == "\n"
