"""The parts of a client's prompt, and their places."""

from __future__ import annotations

import pytest

from backend.context.assembly import PromptItem, layout
from backend.core.reasons import Reason
from backend.generation.model import PromptImage, PromptMessage, Role
from backend.turns.prompt.client import ClientMessage, ClientPrompt, split_prompt
from backend.turns.prompt.client_items import make_end, place_sections


def said(role: Role, text: str, position: int | None = None) -> ClientMessage:
    return ClientMessage(message=PromptMessage(role, text), position=position)


def texts(messages: object) -> list[str]:
    return [each.text for each in messages]  # type: ignore[attr-defined]


HEAD = said("system", "head")
PATH = [said("assistant", "one", 7), said("user", "two", 8), said("assistant", "three", 9)]


def make_section(kind: str, text: str) -> PromptItem:
    return PromptItem(kind=kind, title=kind, text=text, place="head", reasons=[Reason("card")])


def lay_out(client: ClientPrompt, *sections: PromptItem) -> tuple[list[PromptMessage], int]:
    parts = split_prompt(client)
    items = place_sections(parts, [*sections, *make_end(parts, None)])
    return layout(items, parts.history, gap=None, gap_line="", memory="memory", memory_first=False)


def test_messages_without_a_position_keep_their_place() -> None:
    note, nudge = said("system", "note"), said("system", "nudge")
    line = said("user", "line")
    messages = [HEAD, said("system", "start"), PATH[0], note, *PATH[1:], line, nudge]
    prompt = ClientPrompt(messages=messages, line=6)
    laid_out, stable = lay_out(prompt)
    assert texts(laid_out) == [
        *("head", "start", "one", "note", "two", "three", "memory", "line", "nudge")
    ]
    # The note moves with each turn.
    assert texts(laid_out[:stable]) == ["head", "start", "one"]
    # A user's message that is not stored stays where it is.
    messages[3] = said("user", "note")
    laid_out, stable = lay_out(prompt)
    assert texts(laid_out[:stable]) == ["head", "start", "one", "note", "two", "three"]


def test_sections_that_change_follow_the_clients_history() -> None:
    sections = [make_section("character", "card"), make_section("summary", "summary")]
    messages = [HEAD, *PATH, said("user", "line")]
    before = ClientPrompt(messages=messages, line=4, placement="before")
    laid_out, stable = lay_out(before, *sections)
    assert texts(laid_out) == [
        *("head", "card", "one", "two", "three", "summary", "memory", "line")
    ]
    assert stable == 5
    instead = ClientPrompt(messages=messages, line=4)
    laid_out, stable = lay_out(instead, *sections)
    assert texts(laid_out[:stable]) == ["head", "one", "two", "three"]


def test_a_message_with_images_is_sent_as_it_is() -> None:
    picture = PromptImage(url="https://example.org/a.png")
    line = PromptMessage("user", "", (picture,))
    prompt = ClientPrompt(messages=[HEAD, ClientMessage(message=line)], line=1)
    laid_out, _ = lay_out(prompt)
    assert laid_out[-1] == line


@pytest.mark.parametrize("line", [None, 4])
def test_what_follows_the_last_line_is_an_instruction(line: int | None) -> None:
    messages = [HEAD, *PATH, *([said("user", "line")] if line else []), said("system", "go on")]
    parts = split_prompt(ClientPrompt(messages=messages, line=line))
    assert texts(parts.tail) == ["go on"]
    assert list(parts.positions) == [7, 8, 9]
    assert parts.first == 7


def test_a_merged_message_begins_at_its_first_line() -> None:
    merged = said("user", "one\n\ntwo\n\nline", 7)
    parts = split_prompt(ClientPrompt(messages=[HEAD, merged], line=1))
    assert (parts.first, list(parts.positions)) == (7, [])


def test_a_repeated_message_is_a_note() -> None:
    messages = [HEAD, *PATH, PATH[1], said("user", "line")]
    parts = split_prompt(ClientPrompt(messages=messages, line=5))
    assert list(parts.positions) == [7, 8, 9]
    assert [(note.place, note.message.text) for note in parts.notes] == [(3, "two")]
