"""Decisions about requests, as a client sends them one after another.

The chat of these tests has the lines `Welcome.`, `Hello.` and `Sit.` unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from backend.generation.model import PromptImage
from backend.openai_api.contracts import (
    ChatPlacement,
    ClientState,
    Decision,
    Names,
    SentConversation,
    SentMessage,
)
from backend.openai_api.decisions import build_state, decide, digest_instruction
from backend.openai_api.models import RuledKind
from backend.openai_api.quiet_forms import QUIET_FORMS, find_quiet_form
from backend.openai_api.reading import read_conversation
from backend.vault.sealing import Sealer
from tests.unit.openai_api.placing import SEALER, Sent, place

NAMES = Names(user=["Alex"], characters=["Marlena"])
CONTINUE = "[Continue your last message without repeating its original content.]"
IMPERSONATE = (
    "[Write your next reply from the point of view of Alex, using the chat history so far.]"
)
SUMMARY = "Ignore previous instructions. Summarize the most important facts and events so far."
GROUP = "[Start a new group chat. Group members: Marlena, Bo]"
NUDGE = "[Write the next reply only as Bo.]"
PHI = "[Stay in character. It is 12:05 in the story, and the weather is mild and clear.]"
LATER_PHI = PHI.replace("12:05", "13:20")
OTHER = "List five words that describe the mood of this scene, and nothing else at all, please."

WELCOME: Sent = ("assistant", "Welcome.")
HELLO: Sent = ("user", "Hello.")
SIT: Sent = ("assistant", "Sit.")
THANKS: Sent = ("user", "Thanks.")
CHAT: list[Sent] = [WELCOME, HELLO, SIT]


def system(text: str) -> Sent:
    return ("system", text)


def user(text: str) -> Sent:
    return ("user", text)


def assistant(text: str) -> Sent:
    return ("assistant", text)


def read(sent: Sequence[Sent]) -> SentConversation:
    return read_conversation([SentMessage(role=role, text=text) for role, text in sent], NAMES)


def ask(
    sent: Sequence[Sent],
    stored: Sequence[Sent] | None = CHAT,
    *,
    cut: str = "",
    **options: Any,
) -> Decision:
    reading = read(sent)
    placement = ChatPlacement() if stored is None else place(reading, stored, cut)
    return decide(reading, placement, sealer=SEALER, **options)


def remember(*instructions: str, **more: Any) -> ClientState:
    made = tuple(digest_instruction(SEALER, each) for each in instructions)
    return ClientState(instructions=made, **more)


def list_tail(decision: Decision) -> list[Sent]:
    return [(line.role, line.text) for line in decision.placement.tail]


KNOWN = remember(PHI)
SHORT = [WELCOME, HELLO]

DECISIONS: dict[str, tuple[list[Sent], Sequence[Sent] | None, str, str]] = {
    "a first line": ([WELCOME, HELLO], None, "turn", "new_chat"),
    "a history": ([*CHAT, THANKS, system(PHI)], None, "turn", "new_chat"),
    "a new line": ([*CHAT, THANKS], CHAT, "turn", "new_line"),
    "a new line and an instruction": ([*CHAT, THANKS, system(PHI)], CHAT, "turn", "new_line"),
    "a new line and a new instruction": ([*CHAT, THANKS, system(OTHER)], CHAT, "turn", "new_line"),
    "an edited last line": ([WELCOME, user("Hi.")], CHAT, "turn", "new_line"),
    "a swipe": ([WELCOME, HELLO], CHAT, "swipe", "reply_missing"),
    "a swipe with an instruction": ([*SHORT, system(PHI)], CHAT, "swipe", "reply_missing"),
    "a swipe with a later time": ([*SHORT, system(LATER_PHI)], CHAT, "swipe", "reply_missing"),
    "a swipe with lore before the instruction": (
        [*SHORT, system(f"The mill is old.\n{PHI}")],
        CHAT,
        "swipe",
        "reply_missing",
    ),
    "an earlier reply again": ([WELCOME, HELLO], [*CHAT, THANKS, SIT], "swipe", "reply_missing"),
    "a line whose reply failed": ([*CHAT, THANKS], [*CHAT, THANKS], "turn", "answer_missing"),
    "a line whose reply failed, with a new instruction": (
        [*CHAT, THANKS, system(OTHER)],
        [*CHAT, THANKS],
        "turn",
        "answer_missing",
    ),
    "a list that ends with the leaf": (CHAT, CHAT, "continue", "ends_with_reply"),
    "the leaf after an instruction": (
        [*SHORT, system(OTHER), SIT],
        CHAT,
        "continue",
        "ends_with_reply",
    ),
    "an earlier reply to continue": (CHAT, [*CHAT, THANKS, SIT], "swipe", "ends_with_reply"),
    "a continue nudge": ([*CHAT, system(CONTINUE)], CHAT, "continue", "continue_nudge"),
    "a changed continue nudge": (
        [*CHAT, system("[Continue, but slowly.]")],
        CHAT,
        "continue",
        "continue_nudge",
    ),
    "a continue nudge after an instruction": (
        [*CHAT, system(PHI), system(CONTINUE)],
        CHAT,
        "continue",
        "continue_nudge",
    ),
    "a continue nudge after an inserted line": (
        [*CHAT, user("Go on."), system(CONTINUE)],
        CHAT,
        "continue",
        "continue_nudge",
    ),
    "a nudge to continue the user's line": (
        [*CHAT, THANKS, system(CONTINUE)],
        [*CHAT, THANKS],
        "impersonate",
        "continue_nudge",
    ),
    "an impersonate nudge": (
        [*CHAT, system(IMPERSONATE)],
        CHAT,
        "impersonate",
        "impersonate_nudge",
    ),
    "an impersonate nudge of the user": (
        [*CHAT, user(IMPERSONATE)],
        CHAT,
        "impersonate",
        "impersonate_nudge",
    ),
    "the beginning of a reply": ([*CHAT, THANKS, assistant("She")], CHAT, "turn", "new_line"),
    "the beginning of a swipe": ([*SHORT, assistant("She")], CHAT, "swipe", "reply_missing"),
    "the beginning of a reply after a reply": ([*CHAT, assistant("And")], CHAT, "turn", "prefill"),
    "a reply after a reply": ([*CHAT, system(PHI)], CHAT, "turn", "post_history"),
    "another member's reply": ([*CHAT, system(NUDGE)], CHAT, "turn", "group_nudge"),
    "another member's reply, with an instruction": (
        [*CHAT, system(NUDGE), system(PHI)],
        CHAT,
        "turn",
        "group_nudge",
    ),
    "another member's reply without a nudge": (
        [system(GROUP), *CHAT],
        CHAT,
        "turn",
        "group_reply",
    ),
    "a new line in a group": ([*CHAT, THANKS, system(NUDGE)], CHAT, "turn", "new_line"),
    "a swipe in a group": ([*SHORT, system(NUDGE)], CHAT, "swipe", "reply_missing"),
    "an unknown instruction": ([*CHAT, system(OTHER)], CHAT, "quiet", "unknown_instruction"),
    "an unknown instruction in a group": (
        [*CHAT, system(NUDGE), system(OTHER)],
        CHAT,
        "quiet",
        "unknown_instruction",
    ),
    "an unknown instruction with the beginning of its answer": (
        [*CHAT, system(OTHER), assistant("Sure:")],
        CHAT,
        "quiet",
        "unknown_instruction",
    ),
    "an unknown instruction after a known one": (
        [*CHAT, system(f"{PHI}\n{OTHER}")],
        CHAT,
        "quiet",
        "unknown_instruction",
    ),
    "a summary": ([*CHAT, system(SUMMARY)], CHAT, "quiet", "known_quiet_form"),
    "a summary before the turn": (
        [*CHAT, THANKS, system(SUMMARY)],
        CHAT,
        "quiet",
        "known_quiet_form",
    ),
    "a summary of an unknown chat": ([*CHAT, system(SUMMARY)], None, "quiet", "known_quiet_form"),
    "a summary as a user message": ([*CHAT, user(SUMMARY)], CHAT, "quiet", "known_quiet_form"),
    "a raw summary": ([system(SUMMARY), user("Sit.")], None, "quiet", "known_quiet_form"),
    "a raw task that begins its answer": (
        [system(SUMMARY), user("Sit."), assistant("{")],
        None,
        "quiet",
        "known_quiet_form",
    ),
    "a task in one message": (
        [user(f"{SUMMARY}\n\nAlex: Sit.")],
        None,
        "quiet",
        "known_quiet_form",
    ),
    "a connection test": ([user("Hi")], None, "quiet", "connection_test"),
    "the same word in a chat": ([*CHAT, user("Hi")], CHAT, "turn", "new_line"),
    "the same word after a prompt": (
        [system("You are Marlena."), user("Hi")],
        None,
        "turn",
        "new_chat",
    ),
    "the same word for a named chat": ([user("Hi")], [], "turn", "new_line"),
    "a list of prompts": ([system("You are Marlena.")], None, "turn", "new_chat"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_the_end_of_a_list_decides_what_the_request_is(name: str) -> None:
    sent, stored, kind, reason = DECISIONS[name]
    decision = ask(sent, stored, state=KNOWN)
    assert (decision.kind, decision.reason) == (kind, reason)


@pytest.mark.parametrize(
    ("sent", "stored", "tail", "prefill"),
    [
        ([*CHAT, THANKS], CHAT, [THANKS], ""),
        ([*CHAT, THANKS, assistant("She")], CHAT, [THANKS], "She"),
        ([*SHORT, assistant("She says: ")], CHAT, [], "She says: "),
        (CHAT, None, SHORT, "Sit."),
        ([*CHAT, system(NUDGE)], None, CHAT, ""),
        ([*CHAT, user("Go on."), system(CONTINUE)], CHAT, [], ""),
        ([*CHAT, THANKS, system(IMPERSONATE)], CHAT, [], ""),
        (CHAT, CHAT, [], ""),
    ],
)
def test_a_decision_has_the_lines_to_store_and_the_beginning_of_the_reply(
    sent: list[Sent], stored: list[Sent] | None, tail: list[Sent], prefill: str
) -> None:
    decision = ask(sent, stored, state=KNOWN)
    assert (list_tail(decision), decision.prefill) == (tail, prefill)


def test_a_groups_nudge_names_the_speaker() -> None:
    assert ask([*CHAT, THANKS, system(NUDGE), system(PHI)], state=KNOWN).speaker == "Bo"


def test_a_reply_that_was_cut_is_continued() -> None:
    decision = ask([*SHORT, assistant("Sit. The fire")], [*SHORT, assistant("Sit. The fire is")],
                   cut="Sit. The fire is")  # fmt: skip
    assert decision.kind == "continue"
    assert list(decision.placement.edits.values()) == ["Sit. The fire"]


def test_a_swipe_with_the_same_beginning_leaves_the_stored_reply_alone() -> None:
    full = assistant("She nods.")
    first = ask([*SHORT, assistant("She")], SHORT, state=KNOWN)
    assert (first.kind, first.prefill) == ("turn", "She")
    state = build_state(read([*SHORT, assistant("She")]), first, sealer=SEALER)
    again = ask([*SHORT, assistant("She")], [*SHORT, full], cut="She nods.", state=state)
    assert (again.kind, again.reason, again.prefill) == ("swipe", "reply_missing", "She")
    assert again.placement.edits == {}
    assert again.placement.last is not None
    assert again.placement.last.role == "user"
    assert [line.role for line in again.placement.rest] == ["assistant"]


@pytest.mark.parametrize("nudge", [[], [system(CONTINUE)]])
def test_a_reply_that_others_follow_is_continued_as_another_version(nudge: list[Sent]) -> None:
    decision = ask([*CHAT, *nudge], [*CHAT, THANKS, SIT], state=KNOWN)
    assert (decision.kind, decision.prefill) == ("swipe", CHAT[-1][1])
    last, rest = decision.placement.last, decision.placement.rest
    assert last is not None
    assert last.position == len(CHAT) - 2
    assert [each.position for each in rest[:2]] == [len(CHAT) - 1, len(CHAT)]


def test_an_instruction_is_known_after_the_turn_that_brought_it() -> None:
    sent = [*CHAT, THANKS, system("A note."), system(OTHER)]
    state = build_state(read(sent), ask(sent), sealer=SEALER)
    swipe = ask(sent, [*CHAT, THANKS, SIT], state=state)
    assert (swipe.kind, swipe.reason) == ("swipe", "reply_missing")
    assert ask([*CHAT, system(OTHER)], state=ClientState()).kind == "quiet"


def test_an_instruction_that_looks_like_a_nudge_is_none_if_every_turn_has_it() -> None:
    instruction = system("[Continue the roleplay as Marlena would, in two paragraphs at most.]")
    sent = [*CHAT, THANKS, instruction]
    state = build_state(read(sent), ask(sent), sealer=SEALER)
    stored = [*CHAT, THANKS, SIT]
    again = [*stored, instruction]
    decision = ask(again, stored, state=state)
    assert (decision.kind, decision.reason) == ("turn", "post_history")
    later = build_state(read(again), decision, sealer=SEALER, previous=state)
    assert later.instructions == state.instructions


def test_notes_that_were_merged_with_lines_are_not_stored_once_they_have_moved() -> None:
    first = [*CHAT, user(f"Thanks.\n\n{PHI}")]
    state = build_state(read(first), ask(first), sealer=SEALER)
    stored = [*CHAT, THANKS, SIT]
    second = ask([*stored, user(f"I stay.\n\n{LATER_PHI}")], stored, state=state)
    assert (second.kind, list_tail(second)) == ("turn", [user("I stay.")])
    edited = ask(
        [*stored[:-2], user(f"Many thanks.\n\n{LATER_PHI}")],
        stored,
        state=build_state(
            read([*stored, user(f"I stay.\n\n{PHI}")]), second, sealer=SEALER, previous=state
        ),
    )
    assert list_tail(edited) == [user("Many thanks.")]
    alone = ask([*stored, user(PHI)], stored, state=state)
    assert (alone.kind, alone.reason, list_tail(alone)) == ("turn", "post_history", [])


@pytest.mark.parametrize(
    "sent",
    [
        [*CHAT, user("*nods*\n\nThanks."), SIT, user("*nods*\n\nI stay.")],
        [user("*nods*\n\nI stay.")],
        [*CHAT, user("*nods*\n\nThanks.")],
    ],
)
def test_words_that_a_player_repeats_are_stored(sent: list[Sent]) -> None:
    first = [*CHAT, user("*nods*\n\nThanks.")]
    state = build_state(read(first), ask(first), sealer=SEALER)
    stored = sent[:-1]
    assert list_tail(ask(sent, stored, state=state)) == sent[-1:]


@pytest.mark.parametrize("sent", [[*CHAT, THANKS], SHORT, CHAT, [*CHAT, system(OTHER)]])
def test_the_header_decides_before_everything_else(sent: list[Sent]) -> None:
    never = ask(sent, store="never", rules={digest_instruction(SEALER, OTHER): "turn"})
    assert (never.kind, never.reason) == ("quiet", "header_never")
    assert ask(sent, store="always").kind != "quiet"


def test_a_task_is_a_line_if_the_header_wants_everything_stored() -> None:
    messages = [SentMessage(role="user", text=SUMMARY)]
    reading = read_conversation(messages, NAMES, finds_tasks=False)
    decision = decide(reading, ChatPlacement(), sealer=SEALER, store="always")
    assert (decision.kind, decision.reason) == ("turn", "header_always")
    assert list_tail(decision) == [user(SUMMARY)]


def test_a_forced_turn_says_so_only_if_it_would_have_been_quiet() -> None:
    assert ask([*CHAT, system(OTHER)], store="always").reason == "header_always"
    assert ask([*CHAT, THANKS], store="always").reason == "new_line"


@pytest.mark.parametrize(
    ("sent", "stored", "rule", "kind"),
    [
        ([*CHAT, system(OTHER)], CHAT, "turn", "turn"),
        ([*SHORT, system(OTHER)], CHAT, "turn", "swipe"),
        ([*CHAT, system(PHI)], CHAT, "quiet", "quiet"),
        ([*CHAT, THANKS, system(OTHER)], CHAT, "quiet", "quiet"),
        ([*CHAT, user("Translate the last message:\nSit.")], CHAT, "quiet", "quiet"),
        ([system("Translate to French."), user("Sit.")], None, "quiet", "quiet"),
    ],
)
def test_a_correction_decides_about_the_same_instruction(
    sent: list[Sent], stored: list[Sent] | None, rule: RuledKind, kind: str
) -> None:
    subject = ask(sent, stored).instruction
    rules: Mapping[bytes, RuledKind] = {digest_instruction(SEALER, subject): rule}
    decision = ask(sent, stored, rules=rules)
    assert decision.kind == kind
    assert decision.reason in ("rule", "reply_missing")


def test_a_correction_of_a_task_does_not_depend_on_its_text() -> None:
    first = ask([*CHAT, user("Translate the last message:\nSit.")])
    rules: Mapping[bytes, RuledKind] = {digest_instruction(SEALER, first.instruction): "quiet"}
    assert ask([*CHAT, user("Translate the last message:\nGo.")], rules=rules).kind == "quiet"
    assert ask([*CHAT, user("Thanks.")], rules=rules).kind == "turn"


@pytest.mark.parametrize(
    ("sent", "stored", "kind"),
    [
        (SHORT, CHAT, "repeat"),
        ([*CHAT, THANKS], [*CHAT, THANKS], "repeat"),
        (CHAT, CHAT, "repeat"),
        ([*CHAT, THANKS], CHAT, "turn"),
        (SHORT, None, "turn"),
        ([*CHAT, system(SUMMARY)], CHAT, "quiet"),
        ([*CHAT, system(IMPERSONATE)], CHAT, "impersonate"),
    ],
)
def test_a_retry_joins_the_turn_of_the_first_attempt(
    sent: list[Sent], stored: list[Sent] | None, kind: str
) -> None:
    assert ask(sent, stored, retries=1).kind == kind


OPEN_WEBUI = [
    (
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat.\n"
        "### Guidelines:\n- Be clear.\n### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
    ),
    (
        "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history.\n"
        "### Chat History:\n<chat_history>\nUSER: Hi\n</chat_history>"
    ),
    (
        "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might ask.\n"
        "<chat_history>\nUSER: Hi\n</chat_history>"
    ),
    (
        "### Task:\nAnalyze the chat history and decide if search queries are needed.\n"
        "<chat_history>\nUSER: Hi\n</chat_history>"
    ),
    "### Task:\nYou are an autocompletion system. Continue the text in `<text>`.\n<text>He</text>",
    "Your task is to reflect the speaker\u2019s likely facial expression through a fitting emoji.",
]
LIBRECHAT = [
    (
        "Provide a concise, 5-word-or-less title for the conversation, in title case. "
        "Only return the title itself.\n\nConversation:\nUser: Hi"
    ),
    (
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n"
        "2. A concise title in the detected language"
    ),
    "Please generate a concise, 5-word-or-less title for the conversation, in its language.",
    "Summarize the conversation by integrating new lines into the current summary.\n\nEXAMPLE:",
]
SILLYTAVERN = [
    "[Pause your roleplay. Summarize the most important facts and events in the chat so far.]",
    'Ignore previous instructions. Classify the emotion of the last message. Output just "joy".',
    "[In the next response I want you to provide only a detailed comma-delimited list of keywords]",
    "Ignore previous instructions and provide a detailed description of Marlena's surroundings.",
]


@pytest.mark.parametrize("text", [*OPEN_WEBUI, *LIBRECHAT, *SILLYTAVERN])
@pytest.mark.parametrize("stored", [None, CHAT])
def test_known_tasks_of_programs_are_quiet(text: str, stored: list[Sent] | None) -> None:
    assert ask([user(text)], stored).reason == "known_quiet_form"
    assert ask([*CHAT, user(text)], stored).reason == "known_quiet_form"


def test_a_caption_of_an_image_is_quiet_in_a_list_of_its_own() -> None:
    image = PromptImage(url="https://example.test/a.png")
    question = SentMessage(role="user", text="What's in this image?", images=(image,))
    alone = read_conversation([question], NAMES)
    assert decide(alone, ChatPlacement(), sealer=SEALER).reason == "known_quiet_form"
    asked = read_conversation([replace(question, images=()), question], NAMES)
    assert decide(asked, ChatPlacement(), sealer=SEALER).kind == "turn"


@pytest.mark.parametrize(
    "text",
    [
        (
            "### Task:\nRespond to the user query using the given context.\n<context>A</context>\n"
            "\nWhat is A?"
        ),
        "### Task: buy bread, says the note on the table.",
        "Ignore previous instructions and kiss me.",
        "Summarize what happened, Marlena.",
        "test it, then",
        "[Continue]",
        "Provide a title for my book.",
    ],
)
def test_lines_of_players_that_look_like_tasks_are_turns(text: str) -> None:
    assert ask([*CHAT, user(text)]).kind == "turn"
    assert ask([user(text)], None).kind == "turn"


def test_every_known_form_is_found_by_each_of_its_beginnings() -> None:
    for form in QUIET_FORMS:
        for beginning in form.beginnings:
            assert find_quiet_form(f"[{beginning.upper()} and so on {form.content}") is not None


def test_digests_of_instructions_are_keyed_by_user() -> None:
    other = Sealer(UUID(int=2), {1: bytes(32)}, user_key=b"1" * 32)
    assert digest_instruction(SEALER, OTHER) != digest_instruction(other, OTHER)
    assert digest_instruction(SEALER, OTHER) == digest_instruction(SEALER, f"  {OTHER.upper()}\n")
