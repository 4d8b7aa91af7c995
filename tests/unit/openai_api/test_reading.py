"""Lists of clients, read as conversations: lines, instructions, names and members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.generation.model import PromptImage, ToolCall
from backend.openai_api.contracts import Names, SentConversation, SentMessage
from backend.openai_api.reading import MAX_PIECES, read_conversation

NAMES = Names(user=["Alex", "Captain O'Neill"], characters=["Marlena", "Bo"])
GROUP = "[Start a new group chat. Group members: Marlena, Bo]"
CONTINUE = "[Continue your last message without repeating its original content.]"
OLD_CONTINUE = (
    "[Continue the following message. Do not include ANY parts of the original message. Use "
    "capitalization and punctuation as if your reply is a part of the original message: She said\n"
    "nothing more]"
)
IMPERSONATE = (
    "[Write your next reply from the point of view of Alex, using the chat history so far as a "
    "guideline for the writing style of Alex. Don't write as Marlena or system.]"
)
SUMMARY = (
    "Ignore previous instructions. Summarize the most important facts and events in the story so "
    "far. Limit the summary to 200 words or less."
)
DOCUMENTS = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline "
    "citations.\n\n### Guidelines:\n- Be brief.\n\n<context>\nThe mill is old.\n</context>\n\n"
)


def system(text: str, name: str = "") -> SentMessage:
    return SentMessage(role="system", text=text, name=name)


def user(text: str, name: str = "") -> SentMessage:
    return SentMessage(role="user", text=text, name=name)


def assistant(text: str, name: str = "") -> SentMessage:
    return SentMessage(role="assistant", text=text, name=name)


def read_list(sent: Sequence[SentMessage], names: Names = NAMES) -> SentConversation:
    return read_conversation(sent, names)


def list_lines(reading: SentConversation) -> list[tuple[str, str]]:
    return [(line.role, line.text) for line in reading.lines]


def list_instructions(reading: SentConversation) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in reading.instructions]


HELLO = [("assistant", "Welcome."), ("user", "Hello.")]

HISTORIES: dict[str, tuple[list[SentMessage], list[tuple[str, str]]]] = {
    "a plain list": ([assistant("Welcome."), user("Hello.")], HELLO),
    "prompts before it": (
        [system("You are Marlena."), system("Lore"), assistant("Welcome."), user("Hello.")],
        HELLO,
    ),
    "a note between its lines": (
        [assistant("Welcome."), system("[Style: terse]"), user("Hello.")],
        HELLO,
    ),
    "examples as system messages": (
        [
            system("[Example Chat]"),
            system("Hi there", "example_user"),
            system("Go away", "example_assistant"),
            system("[Start a new Chat]"),
            assistant("Welcome."),
            user("Hello."),
        ],
        HELLO,
    ),
    "examples as messages of both roles": (
        [
            system("[Example Chat]"),
            user("Hi there"),
            assistant("Go away"),
            system("[Start a new Chat]"),
            assistant("Welcome."),
            user("Hello."),
        ],
        HELLO,
    ),
    "the marker of old versions before each example": (
        [
            system("[Start a new Chat]"),
            user("Hi there"),
            system("[Start a new Chat]"),
            assistant("Go away"),
            system("[Start a new Chat]"),
            assistant("Welcome."),
            user("Hello."),
        ],
        HELLO,
    ),
    "squashed system messages": (
        [
            system("You are Marlena.\nLore\n[Start a new Chat]"),
            assistant("Welcome."),
            user("Hello."),
        ],
        HELLO,
    ),
    "a marker in another spelling": (
        [user("Old"), system("[Start a new   chat]"), assistant("Welcome."), user("Hello.")],
        HELLO,
    ),
    "system messages turned into those of a user": (
        [
            user("You are Marlena.\n\nLore\n\n[Start a new Chat]"),
            assistant("Welcome."),
            user("Hello."),
        ],
        HELLO,
    ),
    "a marker merged with the first line": (
        [user("You are Marlena.\n\n[Start a new Chat]\n\nHello."), assistant("Welcome.")],
        [("user", "Hello."), ("assistant", "Welcome.")],
    ),
    "the placeholder of the strict post-processing": (
        [system("Prompt"), user("Let's get started."), assistant("Welcome."), user("Hello.")],
        HELLO,
    ),
    "the placeholder of older versions": (
        [system("Prompt"), user("[Start a new chat]"), assistant("Welcome."), user("Hello.")],
        HELLO,
    ),
    "a first line that equals the placeholder": (
        [system("Prompt"), user("Let's get started.")],
        [("user", "Let's get started.")],
    ),
    "names before the lines": ([assistant("Marlena: Welcome."), user("Alex: Hello.")], HELLO),
    "names in another spelling": ([assistant("MARLENA:Welcome."), user("alex : Hello.")], HELLO),
    "another person's words": (
        [assistant("Alex: is what he said."), user("Marlena: is her name.")],
        [("assistant", "Alex: is what he said."), ("user", "Marlena: is her name.")],
    ),
    "everything in one message": (
        [
            user(
                "You are Marlena.\n\n[Start a new Chat]\n\nMarlena: Welcome.\n\nCome in.\n\n"
                "Alex: Hello.\n\nMarlena: Sit.\n\nAlex: Thanks."
            )
        ],
        [
            ("assistant", "Welcome.\n\nCome in."),
            ("user", "Hello."),
            ("assistant", "Sit."),
            ("user", "Thanks."),
        ],
    ),
    "everything in one message, without a marker": (
        [user("You are Marlena.\n\nMarlena: Welcome.\n\nAlex: Hello.")],
        HELLO,
    ),
    "everything in one message, with an unknown user": (
        [user("Prompt\n\n[Start a new Chat]\n\nMarlena: Welcome.\n\nZed: Hello.")],
        HELLO,
    ),
    "a first line with a speaker in it": (
        [user("I meet her.\n\nMarlena: who are you?")],
        [("user", "I meet her.\n\nMarlena: who are you?")],
    ),
    "a repeated last reply": (
        [assistant("Welcome."), user("Hello."), assistant("Sit."), assistant("Sit. ")],
        [*HELLO, ("assistant", "Sit.")],
    ),
    "documents of Open WebUI": (
        [assistant("Welcome."), user(DOCUMENTS + "Hello.")],
        HELLO,
    ),
    "documents of older versions of Open WebUI": (
        [assistant("Welcome."), user(DOCUMENTS + "<user_query>\nHello.\n</user_query>\n")],
        HELLO,
    ),
    "an empty message": ([assistant("Welcome."), user(" \n"), user("Hello.")], HELLO),
    "only prompts": ([system("You are Marlena."), system("[Start a new Chat]")], []),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_lines_of_a_list_are_found_in_every_form(name: str) -> None:
    sent, expected = HISTORIES[name]
    assert list_lines(read_list(sent)) == expected


PHI = "[Stay in character. Two paragraphs.]"
ENDINGS: dict[str, tuple[list[SentMessage], list[tuple[str, str]]]] = {
    "nothing": ([user("Hello.")], []),
    "a post-history instruction": ([user("Hello."), system(PHI)], [("other", PHI)]),
    "two instructions": (
        [user("Hello."), system("A note"), system(PHI)],
        [("other", "A note"), ("other", PHI)],
    ),
    "a continue nudge": ([assistant("Sit."), system(CONTINUE)], [("continue", CONTINUE)]),
    "the continue nudge of old versions": (
        [assistant("Sit."), system(OLD_CONTINUE)],
        [("continue", OLD_CONTINUE)],
    ),
    "a changed continue nudge": (
        [assistant("Sit."), system("[Continue from where you stopped.]")],
        [("continue", "[Continue from where you stopped.]")],
    ),
    "an instruction to continue the story after a user's line": (
        [user("Hello."), system("[Continue the roleplay as Marlena.]")],
        [("other", "[Continue the roleplay as Marlena.]")],
    ),
    "an instruction and a nudge, squashed": (
        [assistant("Sit."), system(f"{PHI}\n{CONTINUE}")],
        [("other", PHI), ("continue", CONTINUE)],
    ),
    "a group nudge and an instruction, merged": (
        [user("Hello."), system(f"[Write the next reply only as Bo.]\n\n{PHI}")],
        [("group", "[Write the next reply only as Bo.]"), ("other", PHI)],
    ),
    "an impersonate nudge": (
        [assistant("Sit."), system(IMPERSONATE)],
        [("impersonate", IMPERSONATE)],
    ),
    "a nudge as a user message": (
        [assistant("Sit."), user(IMPERSONATE)],
        [("impersonate", IMPERSONATE)],
    ),
    "a nudge merged with the line": (
        [user(f"Hello.\n\n{CONTINUE}")],
        [("continue", CONTINUE)],
    ),
    "a summary": ([assistant("Sit."), system(SUMMARY)], [("quiet", SUMMARY)]),
    "a summary merged with the line": ([user(f"Hello.\n\n{SUMMARY}")], [("quiet", SUMMARY)]),
    "the beginning of a reply after an instruction": (
        [user("Hello."), system(PHI), assistant("She")],
        [("other", PHI)],
    ),
    "a request of the user to continue": ([user("[Continue the story, please.]")], []),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_instructions_after_the_last_line_are_found_in_every_form(name: str) -> None:
    sent, expected = ENDINGS[name]
    assert list_instructions(read_list([system("Prompt"), *sent])) == expected


@pytest.mark.parametrize(
    ("sent", "last"),
    [
        ([user(f"Hello.\n\n{CONTINUE}")], "Hello."),
        ([user("Hello."), user("[Write the next reply only as Bo.]")], "Hello."),
        ([user("Hello."), system(PHI), assistant("She")], "She"),
        ([user("[Continue the story, please.]")], "[Continue the story, please.]"),
    ],
)
def test_the_last_line_is_what_a_person_wrote(sent: list[SentMessage], last: str) -> None:
    assert read_list(sent).lines[-1].text == last


def test_the_marker_of_a_group_names_its_members_and_their_lines() -> None:
    reading = read_list(
        [
            system(GROUP),
            assistant("Marlena: Welcome."),
            user("Zed: Hello."),
            assistant("Bo: Hey."),
            user("Zed: Two of you?"),
            system("[Write the next reply only as Bo.]"),
        ],
        Names(characters=["Marlena"]),
    )
    assert list(reading.members) == ["Marlena", "Bo"]
    assert [(line.author, line.text) for line in reading.lines] == [
        ("Marlena", "Welcome."),
        ("Zed", "Hello."),
        ("Bo", "Hey."),
        ("Zed", "Two of you?"),
    ]
    assert reading.instructions[0].name == "Bo"


@pytest.mark.parametrize("begin", [[], [user("Let's get started.")]])
def test_an_unknown_name_of_the_user_is_found_if_the_client_writes_names(
    begin: list[SentMessage],
) -> None:
    sent = [*begin, assistant("Marlena: Welcome."), user("Zed: Note: I am tired.")]
    reading = read_list(sent, Names(characters=["Marlena"]))
    assert [line.text for line in reading.lines] == ["Welcome.", "Note: I am tired."]
    unnamed = read_list([assistant("Welcome."), user("Note: I am tired.")])
    assert unnamed.lines[-1].text == "Note: I am tired."


def test_a_name_in_the_field_is_the_author_as_the_name_is_spelled() -> None:
    reading = read_list([user("Aye.", "Captain_O_Neill"), assistant("Marlena: Hm.", "Marlena")])
    assert [(line.author, line.text) for line in reading.lines] == [
        ("Captain O'Neill", "Aye."),
        ("Marlena", "Hm."),
    ]


def test_merged_lines_are_one_line_with_its_pieces() -> None:
    (line,) = read_list([assistant("Marlena: Welcome.\n\nCome in.\n \nBo: Hey.")]).lines
    assert line.text == "Welcome.\n\nCome in.\n \nBo: Hey."
    assert line.pieces == ("Welcome.", "Come in.", "Hey.")


def test_the_pieces_of_a_long_line_are_bounded_and_keep_its_end() -> None:
    texts = [f"Line {number}" for number in range(200)]
    (line,) = read_list([user("\n\n".join(texts))]).lines
    assert len(line.pieces) == MAX_PIECES
    assert list(line.pieces[1:]) == texts[-MAX_PIECES + 1 :]
    assert "\n\n".join(line.pieces) == line.text


def test_calls_of_tools_and_their_results_are_not_lines() -> None:
    messages = [
        SentMessage(role="user", text="What time is it?"),
        SentMessage(role="assistant", text="", calls=(ToolCall("1", "clock", {}),)),
        SentMessage(role="tool", text="12:05", call_id="1"),
        SentMessage(role="assistant", text="Five past twelve."),
    ]
    assert [line.place for line in read_conversation(messages, NAMES).lines] == [0, 3]


def test_an_image_without_words_is_a_line() -> None:
    image = PromptImage(url="https://example.test/a.png")
    (line,) = read_conversation([SentMessage(role="user", text="", images=(image,))], NAMES).lines
    assert line.images == (image,)


FRAGMENTS = [
    *("[Start a new Chat]", GROUP, CONTINUE, OLD_CONTINUE, IMPERSONATE, SUMMARY, DOCUMENTS),
    *("[Write the next reply only as Bo.]", "Marlena: ", "Alex: ", "Let's get started.", "\n\n"),
    *("Hello.", " ", "\n", "</context>", "### Task:", "<user_query>", "[Continue", "\r\n"),
]
texts = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(FRAGMENTS)).map("".join))
lists = st.lists(
    st.builds(
        SentMessage,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        text=texts,
        name=st.sampled_from(["", "Alex", "example_user"]),
    ),
    max_size=12,
)


@settings(deadline=None, database=None, max_examples=150)
@given(lists)
def test_any_list_is_read_and_its_lines_are_parts_of_it_in_order(
    messages: list[SentMessage],
) -> None:
    reading = read_conversation(messages, NAMES)
    places = [line.place for line in reading.lines]
    assert places == sorted(places)
    for line in reading.lines:
        sent = messages[line.place]
        assert line.role == sent.role or len(messages) == 1
        assert all(part.strip() in sent.text for part in line.text.split("\n\n"))
        assert not line.pieces or 1 < len(line.pieces) <= MAX_PIECES
    for instruction in reading.instructions:
        assert instruction.text in messages[instruction.place].text
