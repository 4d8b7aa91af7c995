"""A client's list is recognised in the store, and the stored path follows it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.errors import ChatNotFoundError, MessageBusyError, MessageTooLongError
from backend.chats.models import MESSAGE_CONTENT, Chat, Message, MessageFile
from backend.chats.text_digests import TextDigester
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import TooLargeError
from backend.generation.model import PromptImage
from backend.openai_api import conversations
from backend.openai_api.contracts import Line
from tests.integration.chats.trees import sign_up
from tests.integration.openai_api.clients import Desk, Sent, make_lines, make_merged
from tests.integration.openai_api.random_client import RandomClient

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


def user(text: str) -> Sent:
    return ("user", text)


def reply(text: str) -> Sent:
    return ("assistant", text)


GREETING = reply("The inn is quiet tonight.")
STORY: list[Sent] = [
    GREETING,
    user("I sit down by the fire."),
    reply("Mara pours you a cup of dark wine and waits."),
    user("Who owns the mill upstream?"),
    reply("The miller died last winter; his daughter keeps the wheel turning now."),
    user("I want to meet her before the snow comes."),
    reply("She nods slowly, and points to the door that leads out to the yard."),
]
TEXTS = [text for _, text in STORY]
NEXT = user("I follow her outside.")


async def tell(database: Database, story: Sequence[Sent] = STORY) -> tuple[Desk, UUID]:
    """Store a story as a chat of a new user."""
    desk = await Desk.open(database, GREETING[1], "Welcome, traveller.")
    return desk, await desk.store(story)


async def test_a_new_line_continues_the_chat_with_most_matching_messages(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    other = [*STORY[:3], user("Nothing."), reply("As you like, stranger.")]
    other_id = await desk.store(other)
    placement = await desk.find([*STORY, NEXT])
    assert placement.chat_id == chat_id
    assert [line.text for line in placement.tail] == [NEXT[1]]
    assert (list(placement.rest), placement.edits, placement.hides) == ([], {}, [])
    assert placement.window_start == 0
    assert [placement.pairs[n].position for n in range(7)] == list(range(7))
    # The lines after the common beginning decide, also if a reply was trimmed.
    assert (await desk.find([*other, NEXT])).chat_id == other_id
    trimmed = reply("As you like")
    assert (await desk.find([*other[:4], trimmed, NEXT])).chat_id == other_id


async def test_a_window_changes_nothing_before_its_first_message(database: Database) -> None:
    desk, chat_id = await tell(database)
    placement = await desk.find([user("An older line."), *STORY[4:], NEXT])
    assert (placement.chat_id, placement.window_start) == (chat_id, 4)
    assert sorted(placement.pairs) == [1, 2, 3]
    assert await desk.send([*STORY[4:], NEXT], "The yard is white.") == chat_id
    assert await desk.show(chat_id) == [*TEXTS, NEXT[1], "The yard is white."]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_removed_message_is_no_line_of_a_client(database: Database, is_sent: bool) -> None:
    desk, chat_id = await tell(database)
    removed = (await desk.find([*STORY, NEXT])).pairs[4].id
    await desk.grove.messages.remove(desk.identity, removed)
    sent = STORY if is_sent else [*STORY[:4], *STORY[5:]]
    placement = await desk.find([*sent, NEXT])
    assert placement.chat_id == chat_id
    assert [line.text for line in placement.tail] == [NEXT[1]]
    assert (placement.edits, list(placement.hides), list(placement.shows)) == ({}, [], [])
    assert removed not in {line.id for line in placement.pairs.values()}
    assert await desk.send([*sent, NEXT], "The yard is white.") == chat_id
    shown = await desk.show(chat_id)
    assert TEXTS[4] not in shown
    assert shown[-1] == "The yard is white."


async def test_a_greeting_alone_matches_nothing(database: Database) -> None:
    desk, _ = await tell(database)
    placement = await desk.find([GREETING])
    assert (placement.chat_id, placement.pairs, len(placement.tail)) == (None, {}, 1)
    assert (await desk.find([GREETING, user("Something new.")])).chat_id is None
    assert (await desk.find([])).tail == []


async def test_a_greeting_and_a_first_line_match_only_a_chat_that_went_no_further(
    database: Database,
) -> None:
    desk, _ = await tell(database)
    assert (await desk.find(STORY[:2])).chat_id is None
    short_id = await desk.store(STORY[:3])
    placement = await desk.find(STORY[:2])
    assert placement.chat_id == short_id
    assert [line.position for line in placement.rest] == [2]
    # The same line is enough if the chat is named, and the greeting shows that it is the list.
    chat_id = await desk.store(STORY)
    assert (await desk.find(STORY[:2], chat_id=chat_id)).last is not None
    assert (await desk.find(STORY[1:2], chat_id=chat_id)).last is None


async def test_equal_beginnings_do_not_overwrite_the_replies_of_another_chat(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    other = [
        *STORY[:2],
        reply("Nobody is there. The hearth has been cold for many days."),
        STORY[3],
        reply("No answer comes, only wind from somewhere below the floor."),
        user("I leave."),
    ]
    assert (await desk.find(other)).chat_id is None
    assert await desk.send(other, "The road is empty.") != chat_id
    assert await desk.show(chat_id) == TEXTS


async def test_a_request_without_the_last_reply_makes_a_swipe(database: Database) -> None:
    desk, chat_id = await tell(database)
    placement = await desk.find(STORY[:-1])
    assert placement.tail == []
    assert [line.position for line in placement.rest] == [6]
    await desk.send(STORY[:-1], "She shakes her head.")
    assert await desk.show(chat_id) == [*TEXTS[:-1], "She shakes her head."]
    assert len(await desk.list_messages(chat_id)) == 9  # with the other greeting
    # The earlier swipe is found and activated. It is not stored again.
    await desk.send([*STORY, NEXT], "The yard is white.")
    assert await desk.show(chat_id) == [*TEXTS, NEXT[1], "The yard is white."]
    assert len(await desk.list_messages(chat_id)) == 11
    await desk.check_sums(chat_id)


async def test_a_shorter_list_with_a_new_line_makes_a_branch(database: Database) -> None:
    desk, chat_id = await tell(database)
    await desk.send([*STORY[:5], NEXT], "You are alone.")
    assert await desk.show(chat_id) == [*TEXTS[:5], NEXT[1], "You are alone."]
    # Back to the older branch, and from there on.
    await desk.send([*STORY, user("Again.")], "Very well.")
    assert await desk.show(chat_id) == [*TEXTS, "Again.", "Very well."]
    assert await desk.list_chats() == [chat_id]


async def test_changed_messages_between_two_matches_are_edited_in_place(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    before = {row.id: row for row in await desk.list_messages(chat_id)}
    edited = list(STORY)
    edited[3] = user("Who owns that mill, and who works there?")
    edited[4] = reply("Nobody knows.")
    placement = await desk.find([*edited, NEXT])
    assert sorted(placement.edits.values()) == sorted([edited[3][1], edited[4][1]])
    await desk.send([*edited, NEXT], "The yard is white.")
    assert await desk.show(chat_id) == [text for _, text in edited] + [
        NEXT[1],
        "The yard is white.",
    ]
    after = {row.id: row for row in await desk.list_messages(chat_id)}
    assert before.keys() <= after.keys()
    assert len(after) == len(before) + 2
    await desk.check_sums(chat_id)


@pytest.mark.parametrize(
    "sent",
    [
        "She nods slowly, and points to the door",
        "She nods slowly and points to the *door* that leads out to the yard",
        "She nods slowly, and points to the door that leads out to the yard. Then she smiles.",
    ],
)
async def test_the_clients_text_of_a_trimmed_reply_is_kept_as_an_edit(
    database: Database, sent: str
) -> None:
    desk, chat_id = await tell(database)
    await desk.send([*STORY[:-1], reply(sent), NEXT], "The yard is white.")
    assert await desk.show(chat_id) == [*TEXTS[:-1], sent, NEXT[1], "The yard is white."]
    assert len(await desk.list_messages(chat_id)) == 10


async def test_an_old_swipe_is_recognised_if_it_was_trimmed(database: Database) -> None:
    desk, chat_id = await tell(database)
    await desk.send(STORY[:-1], "Nothing stirs in the whole house tonight, not even a mouse.")
    trimmed = "She nods slowly, and points"
    await desk.send([*STORY[:-1], reply(trimmed), NEXT], "The yard is white.")
    assert await desk.show(chat_id) == [*TEXTS[:-1], trimmed, NEXT[1], "The yard is white."]
    assert len(await desk.list_messages(chat_id)) == 11


async def test_a_last_reply_is_the_beginning_of_a_new_one_unless_something_follows(
    database: Database,
) -> None:
    desk, _ = await tell(database)
    started = [*STORY[:-1], reply("She nods")]
    placement = await desk.find(started)
    assert [line.text for line in placement.tail] == ["She nods"]
    assert [line.position for line in placement.rest] == [6]
    placement = await desk.find(started, may_be_prefill=False)
    assert (placement.tail, list(placement.edits.values())) == ([], ["She nods"])
    # The stored leaf itself is continued.
    placement = await desk.find(STORY)
    assert (placement.tail, list(placement.rest)) == ([], [])
    assert placement.last is not None
    assert placement.last.position == 6


async def test_missing_messages_are_hidden_and_shown_when_they_are_sent_again(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    shorter = [*STORY[:3], *STORY[5:]]
    await desk.send([*shorter, NEXT], "The yard is white.")
    rest = [NEXT[1], "The yard is white."]
    assert await desk.show(chat_id) == [*TEXTS[:3], *TEXTS[5:], *rest]
    await desk.check_sums(chat_id)
    whole = [*STORY, NEXT, reply("The yard is white.")]
    # One is sent as it was, the other with a small change.
    whole[4] = reply(f"{TEXTS[4]} Her name is Ilse.")
    await desk.send([*whole, user("Go on.")], "It snows.")
    assert await desk.show(chat_id) == [*(text for _, text in whole), "Go on.", "It snows."]
    await desk.check_sums(chat_id)


async def test_a_message_that_the_user_has_hidden_stays_hidden(database: Database) -> None:
    desk, chat_id = await tell(database)
    path = await desk.load_path(chat_id)
    for place in (3, 4):
        await desk.grove.messages.hide(desk.identity, path[place].id, hidden=True)
    shown = [*TEXTS[:3], *TEXTS[5:]]
    # It is neither missing, nor shown because it is sent, nor changed.
    for sent in ([*STORY[:3], *STORY[5:]], STORY, [*STORY[:3], user("Who?"), *STORY[4:]]):
        placement = await desk.find([*sent, NEXT])
        assert placement.chat_id == chat_id
        assert (placement.edits, placement.hides, placement.shows) == ({}, [], [])
    await desk.send([*STORY, NEXT], "The yard is white.")
    assert await desk.show(chat_id) == [*shown, NEXT[1], "The yard is white."]


async def test_an_inserted_line_is_ignored(database: Database) -> None:
    desk, chat_id = await tell(database)
    note = user("[Write in the style of a ballad.]")
    placement = await desk.find([*STORY[:4], note, *STORY[4:], NEXT])
    assert (placement.edits, placement.hides) == ({}, [])
    assert [line.text for line in placement.tail] == [NEXT[1]]
    assert placement.chat_id == chat_id


async def test_a_client_that_leaves_out_the_middle_hides_nothing(database: Database) -> None:
    long: list[Sent] = [
        GREETING,
        *[(role, f"{text} ({n})") for n in range(10) for role, text in STORY[1:]],
    ]
    desk, chat_id = await tell(database, long)
    for first in (0, 10):
        placement = await desk.find([*long[first : first + 3], *long[-4:], NEXT])
        assert (placement.chat_id, placement.hides) == (chat_id, [])
        assert placement.window_start == 57
        assert [placement.pairs[n].position for n in (0, 2, 3, 6)] == [first, first + 2, 57, 60]


async def test_a_reply_that_was_continued_is_found_with_its_new_text(database: Database) -> None:
    desk, chat_id = await tell(database)
    await desk.find([*STORY, NEXT])  # the path is cached now
    [leaf] = (await desk.load_path(chat_id))[-1:]
    longer = f"{TEXTS[-1]} Then the bell rings."
    async with database.write() as session:
        digest = TextDigester(desk.identity.sealer).compute("assistant", longer)
        sealed = desk.identity.sealer.seal(MESSAGE_CONTENT, leaf.id, longer)
        await session.execute(
            update(Message)
            .where(Message.id == leaf.id)
            .values(text_digest=digest, sealed_content=sealed)
        )
    placement = await desk.find([*STORY[:-1], reply(longer), NEXT])
    assert (placement.edits, len(placement.tail), len(placement.pairs)) == ({}, 1, 7)


async def test_a_note_that_moves_with_the_last_line_is_stored_once(database: Database) -> None:
    desk, chat_id = await tell(database)
    note, messages = user("[Write in the style of a ballad.]"), list(STORY)
    for turn in range(3):
        line, answer = user(f"What happens then? ({turn})"), f"Verse {turn} of the song."
        await desk.send([*messages, note, line], answer)
        messages += [line, reply(answer)]
    await desk.send([*messages, user("And the end?")], "It ends well.")
    texts = [desk.read(row) for row in await desk.list_messages(chat_id)]
    assert texts.count(note[1]) == 1
    assert (await desk.show(chat_id)) == [*(text for _, text in messages), "And the end?",
                                          "It ends well."]  # fmt: skip


async def test_lines_that_were_played_elsewhere_are_stored_with_their_images(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    image = PromptImage(media_type="image/png", data=b"a picture")
    lines = make_lines([*STORY, user("A picture."), reply("A fine one."), NEXT])
    lines[7:9] = [replace(line, images=(image,)) for line in lines[7:9]]
    placement = await desk.find(lines)
    stored = await desk.writer.apply(desk.identity, placement, placement.tail[:-1])
    assert stored is not None
    assert await desk.show(chat_id) == [*TEXTS, "A picture.", "A fine one."]
    path = await desk.load_path(chat_id)
    assert stored.leaf_id == path[-1].id
    async with database.read() as session:
        rows = await session.execute(select(MessageFile.message_id, MessageFile.file_id))
        files = {row.message_id: row.file_id for row in rows}
    assert files.keys() == {path[-2].id, path[-1].id}
    assert len(set(files.values())) == 1  # the same content is stored once


async def test_merged_messages_are_matched_by_the_lines_inside(database: Database) -> None:
    story = [*STORY[:3], user("I wait."), *STORY[3:]]
    desk, chat_id = await tell(database, story)
    merged = [
        *make_lines(STORY[:3]),
        make_merged("user", "I wait.", "[A note.]", TEXTS[3], place=3),
        *make_lines(STORY[4:]),
        make_merged("user", "[A note.]", NEXT[1], place=7),
    ]
    placement = await desk.find(merged)
    assert placement.chat_id == chat_id
    assert (placement.edits, placement.hides) == ({}, [])
    assert placement.pairs[3].position == 4
    assert [line.text for line in placement.tail] == [f"[A note.]\n\n{NEXT[1]}"]
    # A new line that is merged with a stored one is a separate line.
    placement = await desk.find(
        [*make_lines(STORY[:3]), make_merged("user", "I wait.", "And then?", place=3)]
    )
    assert [line.text for line in placement.tail] == ["And then?"]


async def test_a_named_chat_gets_the_last_line_of_a_list_that_shares_nothing(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    strange = [user("Is anyone here?"), reply("Only me."), user("Hello?"), reply("Sure,")]
    placement = await desk.find(strange, chat_id=chat_id)
    assert (placement.chat_id, placement.pairs, placement.last) == (chat_id, {}, None)
    assert [line.text for line in placement.tail] == ["Hello?"]
    await desk.send(strange[:3], "Yes.", chat_id=chat_id)
    assert await desk.show(chat_id) == [*TEXTS, "Hello?", "Yes."]
    # A line that the chat contains already is a new line as well.
    await desk.send([user("Hello?")], "Still here.", chat_id=chat_id)
    assert await desk.show(chat_id) == [*TEXTS, "Hello?", "Yes.", "Hello?", "Still here."]
    with pytest.raises(ChatNotFoundError):
        await desk.find(strange, chat_id=new_id())


async def test_only_the_owners_chats_with_the_character_are_candidates(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    stranger = Desk(database, await sign_up(database), character_id=desk.character_id)
    assert (await stranger.find([*STORY, NEXT])).chat_id is None
    with pytest.raises(ChatNotFoundError):
        await stranger.find(STORY, chat_id=chat_id)
    async with database.write() as session:
        await session.execute(update(Chat).values(is_ready=False))
    assert (await desk.find([*STORY, NEXT])).chat_id is None
    with pytest.raises(ChatNotFoundError):
        await desk.find(STORY, chat_id=chat_id)


async def test_messages_without_a_digest_get_one_in_a_search(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, chat_id = await tell(database)
    before = {row.id: row.text_digest for row in await desk.list_messages(chat_id)}
    async with database.write() as session:
        await session.execute(update(Message).values(text_digest=None))
    monkeypatch.setattr(conversations, "MAX_NEW_DIGESTS", 5)
    conversations._select_undigested.cache_clear()
    assert (await desk.find([*STORY, NEXT])).chat_id == chat_id
    digests = [row.text_digest for row in await desk.list_messages(chat_id)]
    assert [each is not None for each in digests] == [False, False, False] + [True] * 5
    await desk.find([*STORY, NEXT])
    assert {row.id: row.text_digest for row in await desk.list_messages(chat_id)} == before
    conversations._select_undigested.cache_clear()


async def test_a_message_that_does_not_open_does_not_stop_the_search(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    path = await desk.load_path(chat_id)
    async with database.write() as session:
        damaged = path[4].sealed_content[:-1] + b"?"
        await session.execute(
            update(Message)
            .where(Message.id == path[4].id)
            .values(sealed_content=damaged, text_digest=None)
        )
    for _ in range(2):
        assert (await desk.find([*STORY, NEXT])).chat_id == chat_id


async def test_a_chat_that_has_changed_since_it_was_read_is_not_changed(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    placement = await desk.find([*STORY[:3], *STORY[5:], user("Elsewhere."), reply("So?"), NEXT])
    path = await desk.load_path(chat_id)
    await desk.grove.messages.hide(desk.identity, path[1].id, hidden=True)
    assert await desk.writer.apply(desk.identity, placement, placement.tail[:-1]) is None
    assert await desk.show(chat_id) == [TEXTS[0], *TEXTS[2:]]
    again = await desk.find([*STORY[:3], *STORY[5:], user("Elsewhere."), reply("So?"), NEXT])
    assert await desk.writer.apply(desk.identity, again, again.tail[:-1]) is not None


async def test_a_refused_change_changes_nothing(database: Database) -> None:
    async def refuse(_session: AsyncSession, _user_id: UUID) -> None:
        raise TooLargeError("The storage is full.")

    desk, chat_id = await tell(database)
    far = [*STORY[:3], *STORY[5:], user("Elsewhere."), reply("So?"), NEXT]
    placement = await desk.find(far)
    limited = Desk(database, desk.identity, character_id=desk.character_id, checks=[refuse])
    with pytest.raises(TooLargeError):
        await limited.writer.apply(desk.identity, placement, placement.tail[:-1])
    long = Line(role="user", text="x" * 100_001, author="", place=0)
    with pytest.raises(MessageTooLongError):
        await desk.writer.apply(desk.identity, placement, [long])
    path = await desk.load_path(chat_id)
    async with database.write() as session:
        await session.execute(
            update(Message).where(Message.id == path[4].id).values(status="streaming")
        )
    with pytest.raises(MessageBusyError):
        await desk.writer.apply(desk.identity, placement, placement.tail[:-1])
    assert await desk.show(chat_id) == TEXTS
    await desk.check_sums(chat_id)


async def test_a_list_that_matches_nothing_becomes_a_chat_with_the_cards_greetings(
    database: Database,
) -> None:
    desk = await Desk.open(database, "Welcome, {{user}}.", GREETING[1])
    chat_id = await desk.send(STORY[:4], "The miller is dead.")
    assert await desk.show(chat_id) == [*TEXTS[:4], "The miller is dead."]
    rows = await desk.list_messages(chat_id)
    roots = [desk.read(row) for row in rows if row.parent_id is None]
    assert roots == ["Welcome, Ada.", GREETING[1]]
    view = await desk.grove.chats.get(desk.identity, chat_id)
    assert (view.title, view.character_ids) == ("Mara", [desk.character_id])
    # A greeting that the card does not have, and a list without one, are stored as they are.
    other = await desk.send([reply("A dragon lands."), user("Run!")], "You run.")
    assert await desk.show(other) == ["A dragon lands.", "Run!", "You run."]
    third = await desk.send([user("Only a line.")], "Only a reply.")
    assert await desk.show(third) == ["Only a line.", "Only a reply."]
    assert len(await desk.list_chats()) == 3


async def test_the_path_follows_the_list_of_a_random_client(database: Database) -> None:
    for seed in (3, 9):
        desk = await Desk.open(database, GREETING[1])
        client = RandomClient(desk, random.Random(seed), messages=[GREETING])
        for _ in range(12):
            await client.step()
            assert client.chat_id is not None
            assert await desk.show(client.chat_id) == [text for _, text in client.messages]
            await desk.check_sums(client.chat_id)
            texts = [desk.read(row) for row in await desk.list_messages(client.chat_id)]
            assert len(set(texts)) == len(texts)  # nothing is stored twice
