"""Lists as clients build them, with every setting that changes their form, are read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from backend.openai_api.contracts import Names, SentConversation, SentMessage
from backend.openai_api.quiet_forms import find_list_form, is_connection_test
from backend.openai_api.reading import read_conversation
from tests.support.clients import (
    EXPRESSION,
    IMAGE_PROMPT,
    SUMMARY,
    Injection,
    LibreChatClient,
    Naming,
    OpenWebUIClient,
    PostProcessing,
    SillyTavernClient,
    SillyTavernSettings,
    Wire,
)

NAMES = Names(user=["Alex"], characters=["Marlena"])
NOTE = "[Style: terse, wry, and never in the first person.]"
FULL = SillyTavernSettings(
    lore_before="The mill stands on the Wend.",
    persona="Alex is a carter.",
    scenario="An evening in autumn.",
    lore_after="It has no wheel.",
    examples=[("Who are you?", "Who asks?"), ("I do.", "Then sit.")],
    injections=[Injection(text=NOTE, depth=2), Injection(text="It rains.", depth=1)],
    post_history="[Two paragraphs at most.]",
)
PLAIN = SillyTavernSettings()
GROUP = replace(FULL, members=["Marlena", "Bo"])
NAMINGS: tuple[Naming, ...] = ("none", "field", "content")
MODES: tuple[PostProcessing, ...] = ("none", "merge", "semi", "strict", "single")


def parse(sent: Sequence[Wire]) -> list[SentMessage]:
    return [
        SentMessage(role=each["role"], text=each["content"], name=each.get("name", ""))
        for each in sent
    ]


def read(sent: Sequence[Wire]) -> SentConversation:
    return read_conversation(parse(sent), NAMES)


def list_lines(sent: Sequence[Wire]) -> list[tuple[str, str]]:
    return [(line.role, line.text) for line in read(sent).lines]


def list_kinds(sent: Sequence[Wire]) -> list[str]:
    return [each.kind for each in read(sent).instructions]


def play(settings: SillyTavernSettings) -> SillyTavernClient:
    client = SillyTavernClient(settings)
    client.say("I knock at the door.")
    client.receive("She opens.\n\nIt is late, she says.")
    client.say("May I stay?")
    client.receive("Come in.")
    return client


SETTINGS = {
    f"{name}, names {naming}, squashed {squashes}": replace(
        settings, naming=naming, squashes=squashes
    )
    for (name, settings), naming, squashes in product(
        (("plain", PLAIN), ("full", FULL), ("group", GROUP)),
        NAMINGS,
        (False, True),
    )
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_lines_of_a_request_are_those_that_its_user_sees(name: str) -> None:
    client = play(SETTINGS[name])
    assert list_lines(client.say("Thank you.")) == client.lines
    client.receive("Sit down.")
    assert list_lines(client.swipe()) == client.lines
    client.receive("Sit.")
    assert list_lines(client.proceed()) == client.lines
    assert list_lines(client.impersonate()) == client.lines
    assert list_lines(client.ask_quietly()) == client.lines


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("naming", ["none", "content"])
@pytest.mark.parametrize("settings", [PLAIN, FULL, GROUP], ids=["plain", "full", "group"])
def test_merged_lists_contain_each_line_as_a_line_or_as_pieces(
    settings: SillyTavernSettings, naming: Naming, mode: PostProcessing
) -> None:
    client = play(replace(settings, naming=naming, post_processing=mode))
    lines = read(client.say("Thank you.")).lines
    for role, text in client.lines:
        parts = text.split("\n\n")
        found = [line for line in lines if line.text == text or set(parts) <= set(line.pieces)]
        assert [line.role for line in found] == [role]


@pytest.mark.parametrize("mode", MODES)
def test_a_merged_list_without_notes_has_exactly_the_users_lines(mode: PostProcessing) -> None:
    client = play(replace(PLAIN, post_processing=mode))
    assert list_lines(client.say("Thank you.")) == client.lines


def _ask_expression(client: SillyTavernClient) -> list[Wire]:
    return client.ask_quietly(EXPRESSION)


def _ask_image_prompt(client: SillyTavernClient) -> list[Wire]:
    return client.ask_quietly(IMAGE_PROMPT.format(name="Marlena"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("squashes", [False, True])
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (SillyTavernClient.proceed, "continue"),
        (SillyTavernClient.impersonate, "impersonate"),
        (SillyTavernClient.ask_quietly, "quiet"),
        (_ask_expression, "quiet"),
        (_ask_image_prompt, "quiet"),
    ],
)
def test_the_last_instruction_is_found_in_every_form(
    act: Callable[[SillyTavernClient], list[Wire]],
    kind: str,
    mode: PostProcessing,
    *,
    squashes: bool,
) -> None:
    client = play(replace(PLAIN, post_processing=mode, squashes=squashes))
    assert list_kinds(act(client)) == [kind]
    client = play(replace(FULL, post_processing=mode, squashes=squashes))
    assert list_kinds(act(client))[-1] == kind


@pytest.mark.parametrize("mode", MODES)
def test_the_nudge_of_a_group_is_found_in_every_form(mode: PostProcessing) -> None:
    client = play(replace(GROUP, post_processing=mode, post_history=""))
    reading = read(client.say("And you?", speaker="Bo"))
    assert [each.name for each in reading.instructions if each.kind == "group"] == ["Bo"]
    assert list(reading.members) == ["Marlena", "Bo"]


def test_a_continued_reply_is_the_last_line_after_the_instructions() -> None:
    client = play(replace(FULL, continues_by_prefill=True))
    reading = read(client.proceed())
    assert reading.lines[-1].place == len(reading.messages) - 1
    assert [(line.role, line.text) for line in reading.lines] == client.lines


def test_a_window_contains_the_last_lines() -> None:
    client = play(replace(FULL, window=3))
    assert list_lines(client.say("Thank you.")) == client.lines[-3:]


@pytest.mark.parametrize("mode", MODES)
def test_raw_tasks_and_connection_tests_are_known(mode: PostProcessing) -> None:
    client = play(replace(FULL, post_processing=mode))
    assert find_list_form(parse(client.ask_raw(SUMMARY, "Come in."))) is not None
    assert is_connection_test(parse(client.test_connection()))


def test_tasks_of_open_web_ui_are_known_and_its_documents_are_not_lines() -> None:
    client = OpenWebUIClient(system_prompt="You are Marlena.")
    sent = client.say_with_documents("Who built the mill?", "The mill was built in 1702.")
    assert list_lines(sent) == client.lines
    client.receive("A miller.")
    for ask in (client.ask_title, client.ask_tags, client.ask_follow_ups, client.ask_queries):
        assert find_list_form(parse(ask())) is not None
    assert find_list_form(parse(client.ask_completion("Who"))) is not None


def test_tasks_of_libre_chat_are_known() -> None:
    client = LibreChatClient()
    client.say("Who built the mill?")
    client.receive("A miller.")
    for ask in (client.ask_title, client.ask_structured_title, client.ask_summary):
        assert find_list_form(parse(ask())) is not None
