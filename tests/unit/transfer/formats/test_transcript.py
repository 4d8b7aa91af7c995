"""A chat is written as Markdown and as text, and neither loses the borders of its messages."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO

import pytest

from backend.generation.model import Role
from backend.transfer.formats.chat_file import ChatHead, FileMessage, FileReference, FileSwipe
from backend.transfer.formats.plain_log import PLAIN_LOG
from backend.transfer.formats.transcript import write_markdown, write_text

NOON = datetime(2023, 6, 19, 14, 20, 5, tzinfo=UTC)
HEAD = ChatHead(title="The lamp", user_name="Ellis", character_names=["Ada"], created_at=NOON)


def say(text: str, author: str = "Ada", *, role: Role = "assistant", **more: object) -> FileMessage:
    return FileMessage(role=role, author=author, swipes=[FileSwipe(text=text, **more)])  # type: ignore[arg-type]


def markdown(*messages: FileMessage, head: ChatHead = HEAD, include_hidden: bool = True) -> str:
    return "".join(write_markdown(head, messages, include_hidden=include_hidden))


def text(*messages: FileMessage, head: ChatHead = HEAD, include_hidden: bool = True) -> str:
    return "".join(write_text(head, messages, include_hidden=include_hidden))


def test_markdown_has_a_heading_for_each_message() -> None:
    files = [FileReference(path="x", name="a_b.png")]
    written = markdown(
        say("You found the *door*.", created_at=NOON),
        say("Is the lamp lit?", "Ellis", role="user", files=files),
    )
    assert written == (
        "# The lamp\n"
        "\nCharacters: Ada  \nUser: Ellis  \nBegun: 2023-06-19 14:20 UTC  \n"
        "\n## Ada · 2023-06-19 14:20 UTC\n\nYou found the *door*.\n"
        "\n## Ellis\n\nIs the lamp lit?\n\n*File: a\\_b.png*\n"
    )


def test_a_transcript_has_the_selected_version_only() -> None:
    message = FileMessage(
        role="assistant",
        author="Ada",
        swipes=[FileSwipe(text="It is not."), FileSwipe(text="It is.", thinking="Hm.")],
        selected=1,
    )
    for written in (markdown(message), text(message)):
        assert "It is." in written
        assert "not" not in written
        assert "Hm." not in written


def test_hidden_messages_are_marked_or_left_out() -> None:
    hidden = say("Psst.")
    hidden.hidden = True
    assert "## Ada · *hidden*\n\nPsst." in markdown(hidden)
    assert "Ada: (hidden) Psst." in text(hidden)
    assert "Psst" not in markdown(hidden, include_hidden=False)
    assert "Psst" not in text(hidden, include_hidden=False)


def test_messages_without_author_are_named_by_the_head_or_their_role() -> None:
    roles: list[Role] = ["user", "assistant", "system"]
    messages = [say(role, "", role=role) for role in roles]
    assert "## Ellis\n\nuser" in markdown(*messages)
    assert "Ada: assistant" in text(*messages)
    assert "System: system" in text(*messages)
    nameless = text(*messages, head=ChatHead())
    assert nameless == "Chat\n\nYou: user\n\nCharacter: assistant\n\nSystem: system\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# Not a heading", "\\# Not a heading"),
        ("   ### Ada", "   \\### Ada"),
        ("#hashtag", "#hashtag"),
        ("<!-- the rest would be gone", "\\<!-- the rest would be gone"),
        ("<script>", "\\<script>"),
        ("[Ada]: http://example.com", "\\[Ada]: http://example.com"),
        ("[Ada] smiles", "[Ada] smiles"),
        ("Above\n---", "Above\n\\---"),
        ("Above\n===", "Above\n\\==="),
        ("Above\n\n---\n\nBelow", "Above\n\n---\n\nBelow"),
        ("* a list\n* of two", "* a list\n* of two"),
        ("```\n# code\n", "```\n# code\n\n```"),
        ("~~~~\n# code\n~~~\n~~~~\n# text", "~~~~\n# code\n~~~\n~~~~\n\\# text"),
        ("one\r\n# two\r# three", "one\n\\# two\n\\# three"),
    ],
)
def test_lines_that_would_break_the_document_are_escaped(line: str, expected: str) -> None:
    assert markdown(say(line)).partition("## Ada\n\n")[2] == f"{expected}\n"


def test_names_and_titles_are_one_line_without_markdown() -> None:
    head = ChatHead(title="*A*\n# B", character_names=["<b>"])
    written = markdown(say("Hm.", "A_d_a\n# x"), head=head)
    assert written.startswith("# \\*A\\* \\# B\n\nCharacters: \\<b\\>  \n")
    assert "## A\\_d\\_a \\# x\n" in written


def test_a_text_is_read_back_with_its_messages() -> None:
    messages = [
        say("You found the door.\n\nAda: it said\n  Note: indented\n[x] y", created_at=NOON),
        say("Is the lamp lit?", "Ellis", role="user", created_at=NOON),
        say("Yes: it smokes.", created_at=NOON),
    ]
    messages[2].hidden = True
    written = text(*messages, head=ChatHead(title="Ada: a story"))
    (reading,) = PLAIN_LOG.read(BytesIO(written.encode()), name="chat.txt")
    assert list(reading.messages) == messages
    assert (reading.head.title, reading.head.user_name) == ("Ada: a story", "Ellis")


@pytest.mark.parametrize("name", ["A: b", "Ada\nx", "[★]", "★", "a b c d e f g", "x" * 200, "“A”"])
def test_every_name_is_written_so_that_it_can_be_read(name: str) -> None:
    written = text(say("Hm.", name, created_at=NOON), say("Hm?", name, created_at=NOON))
    (reading,) = PLAIN_LOG.read(BytesIO(written.encode()), name="chat.txt")
    assert [each.swipes[0].text for each in reading.messages] == ["Hm.", "Hm?"]
