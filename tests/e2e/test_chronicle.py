"""A chronicle as a newcomer meets it: no key, the demo model, a restart, another chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_crash import browser
from tests.fakes.gemini_server import API_KEY
from tests.support.memory import API, preview
from tests.support.process import serving
from tests.support.server import Account, ok
from tests.support.studying import FINISH, event, vendor
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NO_KEY = {"embedder": "none", "demo_tokens_per_second": "0"}
STORY = (
    "I walk down to the harbour and wait for Marlena.",
    "Marlena tells me about the flooded chapel.",
    "I find the silver key under the altar of the flooded chapel.",
    "Garrik kills the drowned warden on the causeway.",
    "I promise Marlena to bring her brother home before the winter.",
    "We sleep.",
)


async def events_of(account: Account, chronicle_id: str) -> list[dict[str, Any]]:
    page = ok(await account.client.get(f"{API}/chronicles/{chronicle_id}/events"))
    items: list[dict[str, Any]] = page["items"]
    return items


async def opted_in(account: Account) -> tuple[str, str]:
    """A chat that keeps a chronicle: (chat, chronicle)."""
    chat = await account.new_chat(title="The Drowned Coast")
    settings = ok(
        await account.client.patch(
            f"{API}/chats/{chat['id']}/settings", json={"chronicle_enabled": True}
        )
    )
    return chat["id"], settings["chronicle_id"]


async def runs_of(account: Account, chat_id: str) -> list[dict[str, Any]]:
    log = ok(await account.client.get(f"{API}/chats/{chat_id}/enrichment"))
    items: list[dict[str, Any]] = log["items"]
    return items


async def see_it_remembered_and_undo_it(account: Account, chat_id: str, chronicle: str) -> None:
    """Another chat on the chronicle knows of the key; undo the run, and none does."""
    other = await account.new_chat(title="Another evening")
    ok(
        await account.client.patch(
            f"{API}/chats/{other['id']}/settings", json={"chronicle_id": chronicle}
        )
    )

    async def is_in_the_prompt() -> Any:
        view = await preview(
            account, other["id"], "Where did I find the silver key, in which chapel?"
        )
        return [item for item in view["retrieved"] if "silver key" in item["text"]]

    (item,) = await until(is_in_the_prompt)
    assert item["kind"] == "event"
    assert item["text"].startswith("[")
    assert item["reasons"][0]["kind"] in {"semantic", "words"}
    run = next(
        each
        for each in await runs_of(account, chat_id)
        if any("silver key" in written["title"] for written in each["written"])
    )
    ok(await account.client.post(f"{API}/enrichment/runs/{run['id']}/undo"))
    left = await events_of(account, chronicle)
    assert not [event for event in left if "silver key" in event["summary"]]
    assert not await is_in_the_prompt()


async def test_what_happened_is_written_down_remembered_elsewhere_and_undone(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, **NO_KEY) as served:
        async with browser(served) as account:
            chat, chronicle = await opted_in(account)
            for line in STORY:
                await account.turn(chat, text=line)

            async def are_written() -> list[dict[str, Any]]:
                found = await events_of(account, chronicle)
                return found if len(found) >= 3 else []

            found = await until(are_written)
            assert any("silver key" in event["summary"] for event in found)
            assert "emo" in (await runs_of(account, chat))[0]["note"]
            cookies = account.client.cookies
        assert served.stop() == 0
    with serving(tmp_path, **NO_KEY) as served:
        async with browser(served, cookies) as account:
            await see_it_remembered_and_undo_it(account, chat, chronicle)


@pytest.mark.thorough
async def test_the_same_with_gemini_s_function_calls(tmp_path: Path) -> None:
    async with vendor("gemini") as model:
        asking = {
            **NO_KEY,
            "gemini_base_url": model.server.url,
            "gemini_api_key": API_KEY,
            "default_model": "demo",
        }
        with serving(tmp_path, **asking) as served:
            async with browser(served) as account:
                chat, chronicle = await opted_in(account)
                for turn, line in enumerate(STORY):
                    tells = "silver key" in line
                    model.script(model.decides(significant=tells))
                    if tells:
                        summary = "Ada found the silver key under the altar of the chapel."
                        made = event(summary, f"#{2 * turn + 1}", who=["Ada"])
                        model.script(model.calls(made), model.calls(FINISH))
                    await account.turn(chat, text=line)

                    async def is_read(count: int = turn + 1) -> bool:
                        return len(await runs_of(account, chat)) == count

                    await until(is_read)
                (found,) = await events_of(account, chronicle)
                first = (await account.messages(chat))[4]
                assert found["source_message_ids"] == [first["id"]]
                run = (await runs_of(account, chat))[-3]
                assert (run["state"], run["calls"]) == ("done", 3)
                assert run["model"] == "gemini/gemini-2.5-flash-lite"
                cookies = account.client.cookies
            assert served.stop() == 0
        with serving(tmp_path, **asking) as served:
            async with browser(served, cookies) as account:
                await see_it_remembered_and_undo_it(account, chat, chronicle)


async def test_a_place_that_somebody_names_becomes_lore_and_is_found_by_its_key(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, **NO_KEY) as served:
        async with browser(served) as account:
            chat, chronicle = await opted_in(account)
            await account.turn(chat, text="The Salty Sigil is an inn by the docks.")

            async def run() -> Any:
                found = await runs_of(account, chat)
                return found and found[0]

            made = await until(run)
            assert (made["state"], made["significant"]) == ("done", True)
            assert [(each["what"], each["title"]) for each in made["written"]] == [
                ("entry_created", "Salty Sigil")
            ]
            other = await account.new_chat(title="Another evening")
            ok(
                await account.client.patch(
                    f"{API}/chats/{other['id']}/settings", json={"chronicle_id": chronicle}
                )
            )
            view = await preview(account, other["id"], "Meet me at the Salty Sigil.")
            (item,) = [each for each in view["retrieved"] if each["kind"] == "lore"]
            assert item["text"].endswith("Salty Sigil is an inn by the docks.")
            assert 'key "Salty Sigil"' in item["reason"]
            view = await preview(account, other["id"], "Meet me at the mill.")
            assert not [each for each in view["retrieved"] if each["kind"] == "lore"]
