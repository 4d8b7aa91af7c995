"""Chats of other programs are read with their speakers, versions and dates, and with warnings."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO

import pytest

from backend.characters.cards.reader import read_card
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.agnai import AGNAI
from backend.transfer.formats.bundles import CharacterBundle
from backend.transfer.formats.chat_file import ChatFormat, ChatHead, FileMessage
from backend.transfer.formats.message_pack import MAX_VALUES
from backend.transfer.formats.plain_log import PLAIN_LOG
from backend.transfer.formats.registry import (
    FORMATS,
    HEAD_BYTES,
    find_bundle,
    find_format,
    get_format,
)
from backend.transfer.formats.risu_backup import RISU_BUNDLES, read_pictures
from tests.support.chat_files import (
    PICTURE,
    agnai_export,
    agnai_installation,
    agnai_message,
    character_ai_old,
    character_ai_page,
    character_ai_short,
    character_ai_turns,
    kobold,
    kobold_chat,
    kobold_instruct,
    list_files,
    oobabooga,
    plain_log,
    risu_all_chats,
    risu_backup,
    risu_block,
    risu_blocks,
    risu_character,
    risu_chat,
    risu_database,
    risu_database_file,
    risu_export,
    risu_message,
    to_json,
)

NOON = datetime(2023, 6, 19, 14, 20, tzinfo=UTC)
FILES = list_files()


class Chat:
    """A chat that was read to its end."""

    def __init__(self, head: ChatHead, messages: list[FileMessage], warnings: list[str]) -> None:
        self.head, self.messages, self.warnings = head, messages, warnings

    @property
    def lines(self) -> list[str]:
        """Role, author and selected text of each message."""
        return [
            f"{each.role} {each.author}: {each.swipes[each.selected].text}"
            for each in self.messages
        ]

    @property
    def swipes(self) -> list[list[str]]:
        return [[swipe.text for swipe in each.swipes] for each in self.messages]


def read(data: bytes, name: str = "chat.json") -> list[Chat]:
    form = find_format(data[:HEAD_BYTES], name)
    assert form is not None
    readings = list(form.read(BytesIO(data), name=name))
    return [Chat(each.head, list(each.messages), each.warnings) for each in readings]


def read_one(data: bytes, name: str = "chat.json") -> Chat:
    (chat,) = read(data, name)
    return chat


def read_bundles(data: bytes, name: str = "file") -> list[CharacterBundle]:
    form = find_bundle(data[:HEAD_BYTES], name)
    assert form is not None
    return list(form.read(BytesIO(data), name=name))


def refusal(data: bytes, name: str = "chat.json") -> str:
    with pytest.raises(TransferFileError) as caught:
        read(data, name)
    return caught.value.detail


# Recognition


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("risu chat", "risuai"),
        ("risu chats", "risuai"),
        ("risu backup", "risuai_backup"),
        ("risu database", "risuai_backup"),
        ("risu blocks", "risuai_backup"),
        ("agnai chat", "agnai"),
        ("agnai installation", "agnai"),
        ("character.ai dump", "character_ai"),
        ("character.ai turns", "character_ai"),
        ("character.ai lists", "character_ai"),
        ("character.ai page", "character_ai"),
        ("oobabooga", "oobabooga"),
        ("koboldai chat", "koboldai_lite"),
        ("koboldai story", "koboldai_lite"),
        ("plain log", "plain_log"),
    ],
)
def test_a_file_is_recognised_by_its_beginning(form: str, expected: str) -> None:
    name, data = FILES[form]
    found = find_format(data[:HEAD_BYTES], name)
    assert found is not None
    assert found.name == expected
    assert [each.name for each in FORMATS if each.matches(data[:HEAD_BYTES], name)] == [expected]


def test_each_format_is_found_by_its_name() -> None:
    for each in FORMATS:
        assert get_format(each.name) is each
    assert get_format("unknown") is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("card.png", b"\x89PNG\r\n\x1a\n" + bytes(100)),
        ("card.json", to_json({"name": "Ada", "description": "Keeps the light.", "first_mes": ""})),
        ("lore.json", to_json({"entries": {"0": {"key": ["lamp"], "content": "It smokes."}}})),
        ("preset.json", to_json({"prompts": [], "temperature": 1})),
        ("card.yaml", b"name: Ada\ngreeting: Hm.\n"),
        ("story.txt", b"It was night.\nThe door was open: nobody had closed it.\n"),
        ("page.html", b"<!DOCTYPE html><title>Other</title>"),
        ("title.json", to_json({"title": "gamestarted", "a": {"histories": 1}})),
        ("empty.txt", b""),
        ("zeros.bin", bytes(1_000)),
    ],
)
def test_files_of_other_kinds_are_not_taken_for_chats(name: str, data: bytes) -> None:
    assert find_format(data, name) is None
    assert find_bundle(data, name) is None


def test_a_large_first_member_does_not_hide_the_format() -> None:
    rows = [["x" * 100_000, "y"], ["Is the lamp lit?", "It is."]]
    chat = read_one(to_json({"internal": rows, "visible": rows}))
    assert len(chat.messages) == 4


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("form", ["agnai chat", "plain log"])
def test_texts_with_a_byte_order_mark_are_read(form: str, encoding: str) -> None:
    name, data = FILES[form]
    marked = data.decode().encode(encoding)
    chosen = find_format(data, name)
    assert chosen is not None
    (reading,) = chosen.read(BytesIO(marked), name=name)
    assert list(reading.messages) == read_one(data, name).messages


@pytest.mark.parametrize("form", [form for form in FILES if "json" in FILES[form][0]])
def test_a_broken_json_file_is_refused_with_its_place(form: str) -> None:
    name, data = FILES[form]
    assert "line 1, column" in refusal(data[:-1], name)


def test_a_file_that_is_not_unicode_is_refused_with_its_byte() -> None:
    data = "Ada: Hello\nAda: caf\xe9\n".encode("latin-1")
    assert "byte 19 is invalid" in refusal(data, "Ada.txt")


@pytest.mark.parametrize("form", [AGNAI, PLAIN_LOG])
def test_a_file_over_the_limit_is_refused(form: ChatFormat) -> None:
    class Endless(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return b" " * (size or 0)

    with pytest.raises(TransferFileError, match="more than 64 MB"):
        list(form.read(Endless(), name="x"))


# RisuAI


def test_a_chat_of_risuai_keeps_thoughts_dates_note_and_variables() -> None:
    chat = read_one(risu_export(), "Ada_2023-06-19T142005123Z_chat.json")
    assert chat.lines == ["user : Is the lamp lit?", "assistant Ada: It is, and it smokes."]
    reply = chat.messages[1].swipes[0]
    assert reply.thinking == "He is early."
    assert reply.created_at == datetime(2023, 6, 19, 14, 20, 5, 123_000, tzinfo=UTC)
    assert chat.head.title == "The lamp"
    assert chat.head.character_names == ["Ada"]
    assert chat.head.variables == {"oil": "3", "lit": "yes"}
    assert chat.head.authors_note is not None
    assert chat.head.authors_note.text == "Keep it short."
    assert chat.warnings == [
        "The greeting is not in the file, because RisuAI keeps it in the character."
    ]


def test_what_risuai_has_beyond_a_chat_is_named() -> None:
    data = risu_export(
        risu_chat(
            localLore=[{"key": "lamp"}],
            hypaV3Data={"summaries": []},
            bookmarks=["m"],
            message=[risu_message("char", "{{inlay::1}} Look."), risu_message("user", " ")],
        ),
        version=3,
    )
    warnings = " ".join(read_one(data).warnings)
    for part in (
        "version 3, newer than 2",
        "lore of the chat itself was left out: 1 entries",
        "summaries",
        "bookmarks",
        "pictures that are not in the file",
        "A message without text",
    ):
        assert part in warnings


def test_disabled_messages_of_risuai_are_hidden() -> None:
    messages = [risu_message("user", str(place)) for place in range(5)]
    messages[2]["disabled"] = "allBefore"
    messages[4]["disabled"] = True
    chat = read_one(risu_export(risu_chat(message=messages)))
    assert [each.hidden for each in chat.messages] == [True, True, True, False, True]


def test_chats_without_messages_and_in_other_storage_are_named_and_left_out() -> None:
    cold = risu_chat(name="Old", message=[risu_message("char", "\uef01COLDSTORAGE\uef01id")])
    empty = risu_chat(name="New", message=[])
    chat = read_one(risu_all_chats(cold, empty, risu_chat()), "Ada_all_chats_2023.json")
    assert chat.head.character_names == ["Ada"]
    assert any("“Old” was left out, because RisuAI has moved" in each for each in chat.warnings)
    assert any("“New” was left out, because it has no" in each for each in chat.warnings)
    assert "“Old” was left out" in refusal(risu_export(cold))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (risu_export({"message": "text"}), "Chat 1: `message` is not a list"),
        (risu_export({"message": [1]}), "Chat 1, message 1 is not an object"),
        (
            risu_export(risu_chat(message=[risu_message("user", "a"), {"data": 7}])),
            "Chat 1, message 2: `data` is not a text",
        ),
        (risu_all_chats(), "no chats"),
    ],
)
def test_a_broken_chat_of_risuai_is_refused_with_its_place(data: bytes, place: str) -> None:
    assert place in refusal(data)


DATABASES = {
    "compressed": risu_database_file(risu_database()),
    "stream": risu_database_file(risu_database(), kind=9),
    "plain": risu_database_file(risu_database(), kind=7),
    "old": risu_database_file(risu_database(), kind=0),
    "blocks": risu_blocks(risu_database()),
    "compressed blocks": risu_blocks(risu_database(), is_compressed=True),
}


@pytest.mark.parametrize("database", DATABASES.values(), ids=DATABASES)
def test_a_backup_of_risuai_has_characters_with_chats_and_groups_last(database: bytes) -> None:
    for data in (database, risu_backup(database=database)):
        ada, bo, group = read_bundles(data)
        assert (ada.name, bo.name, group.name) == ("Ada", "Bo", "The harbour")
        assert ada.card is not None
        assert read_card(ada.card).card.description == "Ada keeps the light."
        assert "chats" not in read_card(ada.card).raw
        assert (ada.picture, group.card) == ("a.png", None)
        assert bo.chats == []
        assert bo.warnings == ["The chat “Empty” was left out, because it has no messages."]
        (talk,) = group.chats
        assert talk.head.character_names == ["Ada", "Bo"]
        assert [each.author for each in talk.messages] == ["Ellis", "Ada", "Bo"]


def test_a_chat_in_a_backup_begins_with_the_chosen_greeting() -> None:
    chats = [risu_chat(), risu_chat(fmIndex=1, bindedPersona="p1")]
    database = risu_database(characters=[risu_character("Ada", "a", chats=chats)])
    first, second = read(risu_backup(database=risu_database_file(database)), "risu.bin")
    assert first.swipes[0] == ["You found the door, Ellis.", "Ada waves."]
    assert first.messages[0].selected == 0
    assert first.lines[1] == "user Ellis: Is the lamp lit?"
    assert second.lines[:2] == ["assistant Ada: Ada waves.", "user Captain: Is the lamp lit?"]
    assert second.head.user_name == "Captain"


def test_a_chat_whose_greeting_is_empty_begins_with_its_first_message() -> None:
    database = risu_database(characters=[risu_character("Ada", "a", chats=[risu_chat(fmIndex=0)])])
    chat = read_one(risu_backup(database=risu_database_file(database)), "risu.bin")
    assert chat.lines[0] == "user Ellis: Is the lamp lit?"


def test_deleted_characters_of_a_backup_are_left_out() -> None:
    gone = risu_character("Gone", "z", trashTime=1)
    database = risu_database(characters=[gone, risu_character("Ada", "a")])
    (only,) = read_bundles(risu_database_file(database))
    assert only.name == "Ada"


def test_pictures_of_a_backup_are_found_by_name() -> None:
    data = risu_backup()
    assert list(read_pictures(BytesIO(data), names={"a.png"})) == [("a.png", b"\x89PNG a")]
    assert list(read_pictures(BytesIO(DATABASES["plain"]), names={"a.png"})) == []
    assert RISU_BUNDLES.read_pictures is read_pictures


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (risu_backup()[:30], "ends within"),
        (risu_backup()[:-5], "ends within `database.risudat`"),
        (risu_backup(database=b"nonsense"), "begins like none"),
        (risu_backup()[: len(b"....a.png....\x89PNG a") + 2], "ends within the length of a name"),
        (risu_backup([("a.png", b"")], risu_database_file([])), "is not an object"),
        (risu_database_file(risu_database(characters=[])), "no characters"),
        (risu_database_file(risu_database())[:-30], "is cut"),
        (risu_database_file(risu_database())[:11] + b"not gzip at all", "not gzip"),
        (risu_database_file(risu_database(), kind=7)[:-1], "ends within a value"),
        (b"\0RISUSAVE\0\x07\xc1", "is no type"),
        (b"\0RISUSAVE\0\x07" + b"\x91" * 100, "nested more than 64"),
        (b"\0RISUSAVE\0\x07\xdd\xff\xff\xff\xff" + bytes(MAX_VALUES), "more than 2,000,000 values"),
        (risu_blocks(risu_database())[:-3], "ends within a block"),
        (risu_blocks(risu_database()) + b"\x02", "cut at its end"),
        (b"RISUSAVE\0" + risu_block(6, "a", {"v": 1, "name": "a"}), "Make a local backup"),
        (b"RISUSAVE\0" + risu_block(2, "a", [1]), "is not an object"),
    ],
)
def test_a_broken_backup_is_refused_with_its_place(data: bytes, reason: str) -> None:
    assert reason in refusal(data, "risu.bin")


def test_a_database_that_grows_beyond_the_limit_is_refused() -> None:
    bomb = risu_database_file({"characters": "x" * (65 * 1024 * 1024)})
    assert len(bomb) < 100_000
    assert "too large: 64 MB are allowed" in refusal(bomb, "risu.bin")


def test_a_name_is_one_line_of_limited_length() -> None:
    database = risu_database(username="Ellis\n" + "x" * 1_000_000)
    chat = read(risu_backup(database=risu_database_file(database)), "risu.bin")[0]
    assert chat.head.user_name == "Ellis " + "x" * 194
    assert chat.messages[1].author == chat.head.user_name


# Agnai


def test_a_note_and_a_scenario_over_their_limits_are_left_out() -> None:
    chat = read_one(risu_export(risu_chat(note="x" * 20_001)))
    assert chat.head.authors_note is None
    assert "The author's note was left out: it has more than 20,000 characters." in chat.warnings
    (reading,) = AGNAI.read(BytesIO(agnai_export(scenario="x" * 200_001)), name="chat.json")
    assert list(reading.messages)
    assert reading.head.scenario is None
    assert reading.warnings == ["The scenario was left out: it has more than 200,000 characters."]


def test_a_chat_of_agnai_keeps_speakers_scenario_and_retries() -> None:
    chat = read_one(agnai_export(), "chat-1a2b.json")
    assert chat.lines == [
        "assistant Ada: You found the door.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.",
    ]
    assert chat.swipes[2] == ["It is.", "It is not."]
    assert (chat.head.title, chat.head.user_name) == ("chat-1a2b", "Ellis")
    assert (chat.head.character_names, chat.head.scenario) == (["Ada"], "A lighthouse.")
    assert chat.messages[0].swipes[0].created_at == NOON.replace(second=5, microsecond=123_000)
    assert chat.warnings == []


def test_siblings_of_agnai_become_swipes_and_other_branches_are_counted() -> None:
    messages = [
        agnai_message(0, "You found the door.", is_user=False),
        agnai_message(1, "Is the lamp lit?", is_user=True),
        agnai_message(2, "It is.", is_user=False),
        agnai_message(3, "It is not.", is_user=False, parent="00000001"),
        agnai_message(4, "Why not?", is_user=True, parent="00000003"),
        agnai_message(5, "No oil.", is_user=False, parent="00000004"),
    ]
    chat = read_one(agnai_export(messages, treeLeafId="00000002-long"))
    assert chat.swipes == [["You found the door."], ["Is the lamp lit?"], ["It is.", "It is not."]]
    assert chat.warnings == ["A message of another branch was left out (2 times)."]
    assert len(read_one(agnai_export(messages, treeLeafId="00000005")).messages) == 5


def test_a_circle_of_parents_ends() -> None:
    messages = [
        agnai_message(0, "One.", is_user=False, parent="00000001"),
        agnai_message(1, "Two.", is_user=True),
    ]
    assert len(read_one(agnai_export(messages, treeLeafId="")).messages) == 2


def test_out_of_character_lines_of_agnai_are_hidden() -> None:
    messages = [agnai_message(0, "Brb.", is_user=True, ooc=True)]
    assert read_one(agnai_export(messages)).messages[0].hidden


def test_the_stores_of_agnai_have_characters_with_their_chats() -> None:
    ada, others = read_bundles(agnai_installation())
    assert ada.card is not None
    assert read_card(ada.card).card.description == "Keeps the light."
    assert [each.head.title for each in ada.chats] == ["The lamp"]
    assert ada.warnings == ["Chats without messages were left out: 1."]
    assert (others.card, [each.head.title for each in others.chats]) == (None, ["Gone"])
    assert [each.head.title for each in read(agnai_installation())] == ["The lamp", "Gone"]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (agnai_export([]), "no messages"),
        (agnai_export([{"msg": 1, "userId": "u"}]), "Message 1: `msg` is not a text"),
        (agnai_export(["msg"]), "Message 1 is not an object"),
    ],
)
def test_a_broken_chat_of_agnai_is_refused_with_its_place(data: bytes, place: str) -> None:
    with pytest.raises(TransferFileError) as caught:
        for reading in AGNAI.read(BytesIO(data), name="chat.json"):
            list(reading.messages)
    assert place in caught.value.detail


# Character.AI


def test_a_dump_of_character_ai_has_its_chats_and_alternatives() -> None:
    first, second = read(character_ai_old(), "Ada.json")
    assert first.lines == [
        "assistant Ada: You found the door.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.",
    ]
    assert first.swipes[2] == ["It is.", "It is not."]
    assert first.head.created_at == NOON.replace(second=5)
    assert (first.head.title, second.head.title) == ("Ada 1", "Ada 2")
    (bundle,) = read_bundles(character_ai_old(), "Ada.json")
    assert bundle.card is not None
    assert read_card(bundle.card).card.first_mes == "Hm."
    assert len(bundle.chats) == 2


def test_turns_of_character_ai_are_put_in_order_with_their_candidates() -> None:
    chat = read_one(character_ai_turns(), "Ada.json")
    assert chat.lines == [
        "assistant Ada: You found the door.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.",
    ]
    assert chat.swipes[2] == ["It is not.", "It is."]
    assert chat.messages[0].swipes[0].created_at == datetime(2024, 1, 1, 10, 0, tzinfo=UTC)


def test_lists_of_cai_tools_and_its_page_are_read() -> None:
    first, second = read(character_ai_short(), "Ada.json")
    assert first.lines == ["assistant Ada: You found the door.", "user Ellis: Is the lamp lit?"]
    assert len(second.messages) == 1
    page = read_one(character_ai_page(), "Ada_Offline.html")
    assert page.lines == [
        "assistant Ada: You found the *door*.\n`It` is “open”.",
        "user Ellis: Is the lamp lit?",
    ]


def test_what_cannot_be_read_of_character_ai_is_named() -> None:
    ada = {"name": "Ada", "is_human": False}
    messages = [
        {"text": "Lost.", "src": ada, "is_alternative": True},
        {"text": "Hm.", "src": ada, "image_rel_path": "x.png"},
        {"text": "Gone.", "src": ada, "deleted": True},
        {"text": "", "src": ada},
    ]
    chat = read_one(character_ai_old(histories=[{"msgs": messages}]))
    assert chat.lines == ["assistant Ada: Hm."]
    assert chat.warnings == [
        "A reply without its place was left out.",
        "The picture of a message was left out.",
        "A deleted message was left out.",
        "A message without text was left out.",
    ]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (character_ai_old(histories=[]), "no chats with messages"),
        (character_ai_old(histories=[{"msgs": [{"text": 1}]}]), "Chat 1, message 1: `text`"),
        (character_ai_old(histories=[{"turns": [{"candidates": [{"raw_content": 1}]}]}]), "candid"),
        (character_ai_page().replace(b"`)", b""), "not complete"),
        (b'[[{"isHuman": 1}], 7]', "Chat 2 is not a list"),
    ],
)
def test_a_broken_file_of_character_ai_is_refused_with_its_place(data: bytes, place: str) -> None:
    assert place in refusal(data)


# text-generation-webui


def test_a_chat_of_oobabooga_keeps_versions_thoughts_dates_and_attachments() -> None:
    chat = read_one(oobabooga(), "Ada_persistent.json")
    assert chat.lines == [
        "assistant Ada: You found the door.",
        "user : Is the lamp lit?",
        "assistant Ada: It is.",
        "assistant Ada: And it smokes.",
    ]
    assert chat.swipes[2] == ["It is not.", "It is."]
    line, reply = chat.messages[1].swipes[0], chat.messages[2].swipes[1]
    assert reply.thinking == "He is early."
    assert reply.created_at == NOON.replace(minute=22)
    assert line.created_at == NOON
    assert [(each.name, each.path) for each in line.files] == [
        ("lamp.png", PICTURE),
        ("oil.pdf", "data:text/plain;base64,T25lIGdhbGxvbi4="),
    ]
    assert chat.head.character_names == ["Ada"]
    assert chat.warnings == ["An attachment without content was left out."]


def test_old_chats_of_oobabooga_lose_only_their_example_dialogue() -> None:
    rows = [["Example?", "Example."], ["<|BEGIN-VISIBLE-CHAT|>", "You found the door."]]
    chat = read_one(to_json({"data": rows, "data_visible": rows[1:]}), "log.json")
    assert chat.lines == ["assistant : You found the door."]
    assert chat.warnings == ["A row of example dialogue was left out."]


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([], "no messages"),
        ([["<|BEGIN-VISIBLE-CHAT|>", ""]], "no messages"),
        ([["a", "b"], ["a"]], "Row 2 is not a pair"),
        ([["a", 1]], "Row 1 has a value that is not a text"),
    ],
)
def test_a_broken_chat_of_oobabooga_is_refused_with_its_row(
    rows: list[list[object]], place: str
) -> None:
    assert place in refusal(to_json({"internal": rows, "visible": []}))


# KoboldAI


def test_a_chat_of_koboldai_is_split_at_the_names() -> None:
    chat = read_one(kobold_chat(), "save.json")
    assert chat.lines == [
        "system : It is night.",
        "assistant Ada: You found the door.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.",
    ]
    assert (chat.head.title, chat.head.user_name) == ("save", "Ellis")
    assert (chat.head.character_names, chat.head.scenario) == (["Ada"], "A lighthouse.")
    assert chat.head.authors_note is not None
    assert chat.warnings == [
        "The world info was left out: 1 entries. Import the file as a lorebook as well.",
        "The memory became the scenario of the chat.",
    ]


def test_a_chat_of_koboldai_can_have_several_characters() -> None:
    data = kobold(3, "Ada: Hm.\nBo: Hm?\nEllis: Hello: both", chatopponent="Ada||$||Bo")
    chat = read_one(data)
    assert chat.lines == ["assistant Ada: Hm.", "assistant Bo: Hm?", "user Ellis: Hello: both"]
    assert chat.head.character_names == ["Ada", "Bo"]


def test_instructions_of_koboldai_are_split_at_placeholders_and_tags() -> None:
    chat = read_one(kobold_instruct())
    assert chat.lines == [
        "system : Play Ada.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.",
        "user Ellis: And the oil?",
        "assistant Ada: A gallon.",
    ]
    assert [each.path for each in chat.messages[2].swipes[0].files] == [PICTURE]


def test_an_adventure_and_a_story_of_koboldai_are_read() -> None:
    adventure = read_one(kobold(2, "A door.\n", "\n> open it\n\n", "It opens."))
    assert adventure.lines == [
        "assistant : A door.",
        "user Ellis: open it",
        "assistant : It opens.",
    ]
    guessed = read_one(kobold(None, "A door.\n", "\n> open it\n\n", "It opens."))
    assert [each.role for each in guessed.messages] == ["assistant", "user", "assistant"]
    story = read_one(kobold(1, "Once", " upon", " a time."))
    assert story.lines == ["assistant : Once", "assistant : upon", "assistant : a time."]
    assert "A story does not mark the user's texts" in story.warnings[0]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (kobold(1, ""), "The story is empty"),
        (to_json({"gamestarted": True, "prompt": 7}), "`prompt` is not a text"),
        (to_json({"gamestarted": True, "prompt": "", "actions": ["a", 1]}), "Action 2"),
    ],
)
def test_a_broken_save_of_koboldai_is_refused_with_its_place(data: bytes, place: str) -> None:
    assert place in refusal(data)


# Plain logs


def test_a_plain_log_has_messages_of_several_lines() -> None:
    chat = read_one(plain_log(), "Ada.txt")
    assert chat.lines == [
        "assistant Ada: You found the door.\nIt was open.",
        "user Ellis: Is the lamp lit?",
        "assistant Ada: It is.\nNote: it smokes.",
        "user Ellis: Good.",
    ]
    assert (chat.head.user_name, chat.head.character_names) == ("Ellis", ["Ada"])
    assert "“Ellis” were read as yours" in chat.warnings[0]


@pytest.mark.parametrize(
    ("text", "name", "user"),
    [
        ("Ada: a\nEllis: b\nAda: c\nEllis: d", "log.txt", "Ellis"),
        ("Ellis: a\nAda: b\nEllis: c\nAda: d", "chat with ada.txt", "Ellis"),
        ("Ada: a\nYou: b\nAda: c", "log.txt", "You"),
        ("Ellis: a\nAI: b\nEllis: c", "log.txt", "Ellis"),
        ("User: a\nAssistant: b", "log.txt", "User"),
        ("Ada: a\nAda: b", "log.txt", ""),
    ],
)
def test_the_users_name_in_a_plain_log_is_found(text: str, name: str, user: str) -> None:
    chat = read_one(text.encode(), name)
    assert chat.head.user_name == user
    assert [each.author for each in chat.messages if each.role == "user"] == [
        line.partition(":")[0] for line in text.split("\n") if line.startswith(f"{user}:") and user
    ]


def test_a_plain_log_can_have_dates_a_title_and_a_preamble() -> None:
    dated = "The lamp\n\n[2023-06-19 14:20] Ada: Hm.\n[2023-06-19T14:21:00Z] Bo: Hm?\n[x] Cy: no"
    chat = read_one(dated.encode(), "log.txt")
    assert chat.head.title == "The lamp"
    assert chat.head.created_at == NOON
    assert chat.lines == ["assistant Ada: Hm.", "user Bo: Hm?\n[x] Cy: no"]
    scene = read_one(b"It is night.\nThe sea is calm.\nAda: Hm.\nAda: Hm?", "log.txt")
    assert scene.lines[0] == "system : It is night.\nThe sea is calm."


def test_the_text_export_of_risuai_is_read() -> None:
    text = "--Ada\nYou found the door.\n\n--Ellis\nIs the lamp lit?\n--oil\n\n--Ada\nIt is."
    chat = read_one(text.encode(), "Ada_2023_chat.txt")
    assert chat.lines == [
        "assistant Ada: You found the door.",
        "user Ellis: Is the lamp lit?\n--oil",
        "assistant Ada: It is.",
    ]


def test_a_plain_log_without_speakers_is_refused() -> None:
    with pytest.raises(TransferFileError, match="No line"):
        list(PLAIN_LOG.read(BytesIO(b"It is night.\n"), name="log.txt"))
