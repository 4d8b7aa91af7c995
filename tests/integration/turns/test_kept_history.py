"""Histories that are kept from turn to turn: prompts are as if nothing were."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from backend.chats import repository
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import API
from tests.support.server import Account, Running, ok
from tests.support.thorough import rounds

pytestmark = pytest.mark.anyio


class Story:
    """A chat, and things that happen in one."""

    def __init__(self, server: Running, ada: Account, chat: str, seed_of: int) -> None:
        self.server, self.ada, self.chat = server, ada, chat
        self.draw = random.Random(seed_of)

    async def preview(self, **body: Any) -> Any:
        """The prompt of the next line, and what it is made of, but for the moment."""
        body = {"text": "And then?", "prompt": True, **body}
        shown = ok(await self.ada.client.post(f"{API}/chats/{self.chat}/context", json=body))
        return shown["prompt"], shown["totals"], shown["left_out"]

    async def check(self) -> None:
        """A prompt with what is kept is the same as one with nothing kept."""
        budgets = self.draw.choice([{}, {}, {"history": 300}, {"history": 900}])
        kept = await self.preview(budgets=budgets)
        identity = await identity_of(self.server, self.ada)
        self.server.parts.histories.user_signed_out(identity.user_id)
        assert await self.preview(budgets=budgets) == kept

    async def messages(self) -> list[dict[str, Any]]:
        return await self.ada.messages(self.chat)

    async def line(self, *, of_last: int = 0) -> dict[str, Any]:
        return self.draw.choice((await self.messages())[1:][-of_last:])

    async def say(self) -> None:
        await self.ada.turn(self.chat, text=f"Line {self.draw.random()}.")

    async def swipe(self) -> None:
        last = (await self.messages())[-1]
        if last["role"] == "assistant":
            await self.ada.turn(self.chat, regenerate_of=last["id"])

    async def go_on(self) -> None:
        if (await self.messages())[-1]["role"] == "assistant":
            await self.ada.turn(self.chat, **{"continue": True})

    async def edit(self) -> None:
        body = {"text": f"Otherwise: {self.draw.random()}"}
        line = await self.line(of_last=6)
        ok(await self.ada.client.patch(f"{API}/messages/{line['id']}", json=body))

    async def hide(self) -> None:
        line = await self.line()
        body = {"hidden": not line["hidden"]}
        ok(await self.ada.client.patch(f"{API}/messages/{line['id']}", json=body))

    async def delete(self) -> None:
        line = self.draw.choice((await self.messages())[-4:])
        if line["position"]:
            ok(await self.ada.client.delete(f"{API}/messages/{line['id']}"))

    async def other_branch(self) -> None:
        path = f"{API}/messages/{(await self.line())['id']}"
        swipes = ok(await self.ada.client.get(f"{path}/siblings"))["items"]
        chosen = self.draw.choice(swipes)
        ok(await self.ada.client.post(f"{API}/messages/{chosen['id']}/activate", json={}))


@pytest.mark.parametrize("number", range(rounds(1, 6)))
async def test_a_prompt_is_as_if_nothing_were_kept_whatever_happened(
    server: Running, ada: Account, chat: str, number: int
) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * (n % 7) for n in range(40)])
    # What is indexed meanwhile would be found by the second prompt alone.
    settings = {"memory": {"enabled": False}}
    ok(await ada.client.patch(f"{API}/chats/{chat}/settings", json=settings))
    story = Story(server, ada, chat, number)
    steps = [
        *(story.say, story.say, story.swipe, story.go_on, story.edit),
        *(story.hide, story.hide, story.delete, story.other_branch),
    ]
    await story.preview()
    for _ in range(rounds(25, 120)):
        for step in story.draw.sample(steps, story.draw.randint(1, 2)):
            await (step if len(await story.messages()) > 4 else story.say)()
        await story.check()


async def test_what_is_kept_is_neither_read_nor_opened_again(
    server: Running, ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seed(server, ada, chat, [f"{n} la" for n in range(30)])
    story, read = Story(server, ada, chat, 1), list[int]()
    lines = repository.load_active_messages

    async def counted(*arguments: Any, **options: Any) -> Any:
        found = await lines(*arguments, **options)
        read.append(len(found.ids))
        return found

    monkeypatch.setattr(repository, "active_lines", counted)
    first = await story.preview()
    assert await story.preview() == first
    await story.say()
    await story.preview()
    assert read[0] > 30
    assert read[1:] == [2, 2, 4]


@pytest.mark.every_database
async def test_lines_are_found_by_their_tokens_from_the_root(
    server: Running, ada: Account, chat: str
) -> None:
    await seed(server, ada, chat, [f"{n} la" for n in range(300)])
    database = server.parts.database
    query = repository._MESSAGES.compile(dialect=database._reader.sync_engine.dialect)
    given = query.construct_params({"chat_id": UUID(chat), "from_sum": 1_000, "to_position": 299})
    values = [given[name] for name in query.positiontup or ()]
    async with database.write() as session:
        connection = await session.connection()
        if database.is_sqlite:
            stored = (each.bytes if isinstance(each, UUID) else each for each in values)
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", tuple(stored))
        else:
            # As the driver runs a statement that it has prepared: without knowing its values.
            await session.execute(text("ANALYZE messages"))
            await session.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
            await session.execute(text("SET LOCAL enable_seqscan = off"))  # as if it were longer
            await connection.exec_driver_sql(f"PREPARE lines AS {query}")
            quoted = ", ".join(f"'{each}'" for each in values)
            plan = await connection.exec_driver_sql(f"EXPLAIN EXECUTE lines({quoted})")
            await session.execute(text("DEALLOCATE lines"))
        steps = "\n".join(str(step) for step in plan)
    assert "ix_messages_active_path" in steps
    assert "ix_messages_active_position" not in steps


async def test_two_lines_of_one_length_change_places_unseen_by_the_sums(
    server: Running, ada: Account, chat: str
) -> None:
    await seed(server, ada, chat, ["one two", "two one", "three four", "four three"])
    story = Story(server, ada, chat, 1)
    lines = {each["text"]: each["id"] for each in await story.messages()}

    async def hide(text: str, *, hidden: bool) -> None:
        path = f"{API}/messages/{lines[text]}"
        ok(await ada.client.patch(path, json={"hidden": hidden}))

    await hide("one two", hidden=True)
    await story.preview()
    await hide("one two", hidden=False)
    await hide("two one", hidden=True)
    prompt, *_ = await story.preview()
    said = [each["text"] for each in prompt]
    assert any("one two" in each for each in said)
    assert not any("two one" in each for each in said)


async def test_nothing_of_a_user_who_signs_out_is_kept(
    server: Running, ada: Account, chat: str
) -> None:
    story, user_id = Story(server, ada, chat, 1), (await identity_of(server, ada)).user_id
    await story.say()
    await story.preview()
    kept = server.parts.histories._kept
    assert kept.get(user_id, UUID(chat)) is not None
    ok(await ada.client.delete(f"{API}/sessions/current"), 204)
    assert kept.get(user_id, UUID(chat)) is None
