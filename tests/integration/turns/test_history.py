"""The chat history of prompts: cached lines, and the queries that load it."""

from __future__ import annotations

import random
import re
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from backend.chats import repository
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import new_book, new_entry, preview, settled
from tests.support.server import Account, Running
from tests.support.statements import Statement, record_statements
from tests.support.thorough import rounds

pytestmark = pytest.mark.anyio


class Story:
    """A chat and random changes of it."""

    def __init__(self, server: Running, ada: Account, chat: str, seed_of: int) -> None:
        self.server, self.ada, self.chat = server, ada, chat
        self.draw = random.Random(seed_of)

    async def preview(self, **body: Any) -> Any:
        """Return the prompt of the next line, its totals and the items that were left out."""
        body = {"text": "And then?", "prompt": True, **body}
        shown = await self.ada.post(f"/chats/{self.chat}/context", body)
        return shown["prompt"], shown["totals"], shown["left_out"]

    async def check(self) -> None:
        """Raise unless the prompt is the same with and without the cache."""
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
        await self.ada.patch(f"/messages/{line['id']}", body)

    async def hide(self) -> None:
        line = await self.line()
        body = {"hidden": not line["hidden"]}
        await self.ada.patch(f"/messages/{line['id']}", body)

    async def delete(self) -> None:
        line = self.draw.choice((await self.messages())[-4:])
        if line["position"]:
            await self.ada.delete(f"/messages/{line['id']}", 200)

    async def other_branch(self) -> None:
        path = f"/messages/{(await self.line())['id']}"
        swipes = (await self.ada.get(f"{path}/siblings"))["items"]
        chosen = self.draw.choice(swipes)
        await self.ada.post(f"/messages/{chosen['id']}/activate", {})


@pytest.mark.parametrize("number", range(rounds(1, 6)))
async def test_a_cached_history_changes_no_prompt(
    server: Running, ada: Account, chat: str, number: int
) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * (n % 7) for n in range(40)])
    # Lines that are indexed meanwhile would only be in the second prompt.
    settings = {"memory": {"enabled": False}}
    await ada.patch(f"/chats/{chat}/settings", settings)
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


def count_lines_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each query for lines adds the number of its lines."""
    read, lines = list[int](), repository.load_active_messages

    async def counted(*arguments: Any, **options: Any) -> Any:
        found = await lines(*arguments, **options)
        read.append(len(found.ids))
        return found

    monkeypatch.setattr(repository, "load_active_messages", counted)
    return read


async def test_cached_lines_are_not_read_again(
    server: Running, ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seed(server, ada, chat, [f"{n} la" for n in range(30)])
    story, read = Story(server, ada, chat, 1), count_lines_read(monkeypatch)
    first = await story.preview()
    assert await story.preview() == first
    await story.say()
    await story.preview()
    # Later lines are among the last messages, which every prompt loads.
    [lines] = read
    assert lines > 30


@pytest.mark.every_database
async def test_lines_are_found_by_an_index(server: Running, ada: Account, chat: str) -> None:
    await seed(server, ada, chat, [f"{n} la" for n in range(300)])
    database = server.parts.database
    async with database.write() as session:
        with record_statements() as statements:
            await repository.load_active_messages(
                session, UUID(chat), from_sum=1_000, to_position=299, authors=False
            )
        [(query, values)] = [each for each in statements if "path_tokens" in each.text]
        connection = await session.connection()
        if database.is_sqlite:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values)
        else:
            # The driver prepares statements, so the planner does not know the values.
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


async def test_lines_of_equal_length_are_swapped(server: Running, ada: Account, chat: str) -> None:
    await seed(server, ada, chat, ["one two", "two one", "three four", "four three"])
    story = Story(server, ada, chat, 1)
    lines = {each["text"]: each["id"] for each in await story.messages()}

    async def hide(text: str, *, hidden: bool) -> None:
        path = f"/messages/{lines[text]}"
        await ada.patch(path, {"hidden": hidden})

    await hide("one two", hidden=True)
    await story.preview()
    await hide("one two", hidden=False)
    await hide("two one", hidden=True)
    prompt, *_ = await story.preview()
    said = [each["text"] for each in prompt]
    assert any("one two" in each for each in said)
    assert not any("two one" in each for each in said)


async def test_a_sign_out_drops_the_cached_history(
    server: Running, ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seed(server, ada, chat, [f"{n} la" for n in range(30)])
    read = count_lines_read(monkeypatch)
    await Story(server, ada, chat, 1).preview()
    await ada.delete("/sessions/current")
    async with server.signed_in(ada.name) as back:
        await Story(server, back, chat, 1).preview()
    assert read[0] == read[1] > 30


ENRICHMENT_TABLES = re.compile(r"\b(chat_summaries|chronicle_event\w*|enrichment_\w+)\b")


def find_tables(statements: list[Statement]) -> set[str]:
    """Return the tables of chronicles, runs and summaries that statements name."""
    assert statements
    return {table for each in statements for table in ENRICHMENT_TABLES.findall(each.text)}


async def test_unused_features_need_no_queries(server: Running, ada: Account, chat: str) -> None:
    book = await new_book(ada)
    await new_entry(ada, book, title="The lamp", keys=["lamp"], content="It never goes out.")
    await ada.put(f"/chats/{chat}/lorebooks/{book}", {"state": "linked"})
    await seed(server, ada, chat, [f"{number}: the lamp burns." for number in range(30)])
    await ada.turn(chat, text="Is the lamp lit?")
    await settled(server)
    with record_statements() as statements:
        await preview(ada, chat, "The lamp?")
    assert find_tables(statements) == set()

    chronicle = (await ada.post("/chronicles", {"name": "Ours"}, 201))["id"]
    settings = {"chronicle_id": chronicle, "summary": {"enabled": True}}
    await ada.patch(f"/chats/{chat}/settings", settings)
    with record_statements() as statements:
        await preview(ada, chat, "The lamp?")
    assert {"chat_summaries", "chronicle_events"} <= find_tables(statements)
