"""A client's list is recognised in the store, and the stored path follows it."""

from __future__ import annotations

import pytest

from backend.database.engine import Database
from tests.integration.openai_api.clients import Desk, Sent

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

GREETING: Sent = ("assistant", "The inn is quiet tonight.")


def user(text: str) -> Sent:
    return ("user", text)


def reply(text: str) -> Sent:
    return ("assistant", text)


STORY: list[Sent] = [
    GREETING,
    user("I sit down by the fire."),
    reply("Mara pours you a cup of dark wine and waits."),
    user("Who owns the mill upstream?"),
    reply("The miller died last winter; his daughter keeps the wheel turning now."),
    user("I want to meet her before the snow comes."),
    reply("She nods slowly, and points to the door that leads out to the yard."),
]


async def tell(database: Database, story: list[Sent] = STORY) -> tuple[Desk, object]:
    desk = await Desk.open(database, GREETING[1], "Welcome, traveller.")
    return desk, await desk.store(story)


async def test_a_new_line_continues_the_chat_with_most_matching_messages(
    database: Database,
) -> None:
    desk, chat_id = await tell(database)
    other = await desk.store([*STORY[:3], user("Nothing."), reply("As you like, stranger.")])
    placement = await desk.find([*STORY, user("I follow.")])
    assert placement.chat_id == chat_id
    assert [line.text for line in placement.tail] == ["I follow."]
    assert (list(placement.rest), placement.edits, placement.hides) == ([], {}, [])
    assert placement.is_begin
    assert [placement.pairs[n].position for n in range(7)] == list(range(7))
    assert (
        await desk.find([*STORY[:3], user("Nothing."), reply("As you like, stranger.")])
    ).chat_id == other


async def test_of_equal_matches_the_chat_with_the_first_lines_is_chosen(
    database: Database,
) -> None:
    desk, _ = await tell(database)
    begun = await desk.store([GREETING, user("I knock."), reply("The door opens slowly.")])
    await desk.store(
        [GREETING, user("I wait."), reply("The door opens slowly."), user("I step in."), STORY[2]]
    )
    placement = await desk.find(
        [user("I knock."), reply("The door opens slowly."), user("I step in.")]
    )
    assert placement.chat_id == begun
