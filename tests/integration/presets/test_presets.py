"""Tests of prompt presets: the API, and the prompts that they make."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from backend.presets import service
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.support.memory import link, new_book, new_entry
from tests.support.server import Account, Running, ok, problem, running
from tests.support.shared import ada, shared_url, vendor

__all__ = ["ada", "server", "shared_url", "vendor"]

pytestmark = pytest.mark.anyio

API = "/api/v1"
PRESETS = f"{API}/presets"
FILE = (Path(__file__).parents[2] / "fixtures/presets/lighthouse.json").read_bytes()


async def make(ada: Account, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(await ada.client.post(PRESETS, json={"name": "Mine", **fields}), 201)
    return made


async def test_a_preset_begins_with_the_blocks_of_a_prompt_without_one(ada: Account) -> None:
    made = await make(ada)
    markers = [block["marker"] for block in made["blocks"]]
    assert (markers[0], markers[-3:]) == ("system_prompt", ["history", "memory", "post_history"])
    path = f"{PRESETS}/{made['id']}"
    assert ok(await ada.client.get(path)) == made
    own = {"id": "tone", "name": "Tone", "content": "Dry, {{user}}.", "depth": 2}
    headers = {"if-match": '"1"'}
    patch = {"blocks": [*made["blocks"], own], "squash_system_messages": False}
    changed = ok(await ada.client.patch(path, json=patch, headers=headers))
    assert (changed["blocks"][-1], changed["squash_system_messages"], changed["revision"]) == (
        own,
        False,
        2,
    )
    again = await ada.client.patch(path, json=patch, headers=headers)
    problem(again, 412, "revision-mismatch")
    listed = ok(await ada.client.get(PRESETS))["items"]
    assert [(each["id"], each["name"], each["revision"]) for each in listed] == [
        (made["id"], "Mine", 2)
    ]
    assert (await ada.client.delete(path)).status_code == 204
    problem(await ada.client.get(path), 404, "preset-not-found")


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([{"id": "a"}, {"id": "a"}], "two have the id `a`"),
        ([{"id": "main"}], "reserved for `system_prompt`"),
        ([{"id": "x", "marker": "memory"}], "has the id `talekeeperMemory`"),
        ([{"id": "a"}], "`history`"),
        ([{"id": f"{n}", "content": "x" * 200_000} for n in range(6)], "together"),
        ([{"id": f"{n}"} for n in range(201)], "200"),
    ],
)
async def test_blocks_that_make_no_prompt_are_refused(
    ada: Account, blocks: list[dict[str, Any]], said: str
) -> None:
    if "together" in said:
        blocks = [*blocks, {"id": "chatHistory", "marker": "history"}]
    answer = await ada.client.post(PRESETS, json={"name": "Mine", "blocks": blocks})
    found = problem(answer, 422, "validation-failed")
    assert said in json.dumps(found)
    assert not ok(await ada.client.get(PRESETS))["items"]


async def test_a_file_comes_in_and_goes_out(ada: Account) -> None:
    upload = {"file": ("Lighthouse.json", FILE)}
    before = ok(await ada.client.get(f"{API}/me/usage"))
    made = ok(await ada.client.post(f"{PRESETS}/import", files=upload), 201)
    assert made["preset"]["name"] == "Lighthouse"
    assert made["warnings"] == ["Its order contains the unknown prompt `gone`."]
    path = f"{PRESETS}/{made['preset']['id']}"
    exported = await ada.client.get(f"{path}/export")
    assert json.loads(exported.content) == json.loads(FILE)
    assert "Lighthouse.json" in exported.headers["content-disposition"]
    after = ok(await ada.client.get(f"{API}/me/usage"))
    assert _read_stored(after) - _read_stored(before) > len(FILE) // 3
    broken = await ada.client.post(f"{PRESETS}/import", files={"file": ("x", b"{}")})
    problem(broken, 422, "unreadable-preset")
    assert len(ok(await ada.client.get(PRESETS))["items"]) == 1


async def test_an_account_holds_so_many(ada: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_PRESETS", 1)
    await make(ada)
    problem(await ada.client.post(PRESETS, json={"name": "More"}), 409, "presets-full")


def _read_stored(usage: Any) -> int:
    used: int = next(each["used"] for each in usage["items"] if each["quota"] == "stored_bytes")
    return used


HISTORY = {"id": "chatHistory", "marker": "history"}
MEMORY = {"id": "talekeeperMemory", "marker": "memory"}
MAIN = {"id": "main", "marker": "system_prompt"}
CHARACTER = {"id": "charDescription", "marker": "character"}

CARD = {
    "name": "Mira",
    "description": "Keeps the lighthouse.",
    "personality": "Dry.",
    "scenario": "A storm.",
    "system_prompt": "The card's prompt.",
    "post_history_instructions": "Stay brief.",
    "first_mes": "Who goes there?",
}


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    openai = vendor.config(context_window=300_000, server="deepseek")
    registry = ModelRegistry(demo_tokens_per_second=0, openai=openai, default=MODEL_ID)
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


async def open_chat(ada: Account, **card: Any) -> tuple[str, str]:
    """Make a character with a card and a chat. Return (character, chat)."""
    character = ok(await ada.client.post(f"{API}/characters", json=CARD | card), 201)["id"]
    chat = ok(await ada.client.post(f"{API}/chats", json={"character_ids": [character]}), 201)
    return character, chat["id"]


async def make_preset(
    ada: Account, *blocks: dict[str, Any], name: str = "Mine", **fields: Any
) -> str:
    body = {"name": name, "blocks": blocks, **fields} if blocks else {"name": name, **fields}
    preset: str = ok(await ada.client.post(f"{API}/presets", json=body), 201)["id"]
    return preset


async def try_preset(
    ada: Account, chat: str, *blocks: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """Return the context of the next turn with a preset that is not saved."""
    preset = {"name": "Draft", "blocks": blocks, **fields}
    body = {"text": "It is me.", "prompt": True, "preset": preset}
    view: dict[str, Any] = ok(await ada.client.post(f"{API}/chats/{chat}/context", json=body))
    return view


async def preview(ada: Account, chat: str) -> dict[str, Any]:
    query = {"text": "It is me.", "prompt": "true"}
    view: dict[str, Any] = ok(await ada.client.get(f"{API}/chats/{chat}/context", params=query))
    return view


def find_texts(view: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["role"], each["text"]) for each in view["prompt"]]


async def choose(ada: Account, chat: str, preset: str | None) -> None:
    body = {"preset_id": preset}
    ok(await ada.client.patch(f"{API}/chats/{chat}/settings", json=body))


async def test_the_default_blocks_make_the_prompt_that_there_is_without_a_preset(
    ada: Account,
) -> None:
    _, chat = await open_chat(ada)
    book = await new_book(ada)
    await new_entry(ada, book, content="The lamp is lit.", constant=True)
    await link(ada, chat, book)
    note = {"text": "Slowly.", "position": "after_prompt", "role": "user"}
    await ada.client.patch(f"{API}/chats/{chat}/settings", json={"authors_note": note})
    plain = await preview(ada, chat)
    await choose(ada, chat, await make_preset(ada))
    chosen = await preview(ada, chat)
    assert find_texts(chosen) == find_texts(plain)
    assert chosen["prompt_hash"] == plain["prompt_hash"]
    assert (plain["preset"], chosen["preset"]["chosen_by"]) == (None, "chat")
    assert all(not item.get("block") for item in plain["items"])
    named = {item["kind"]: item.get("block", "") for item in chosen["items"]}
    assert named["character"] == "Character"
    assert named["post_history"] == "Post-history instructions"
    assert named["authors_note"] == "System prompt"


async def test_blocks_stand_in_order_with_their_roles_and_at_their_depths(ada: Account) -> None:
    _, chat = await open_chat(ada)
    view = await try_preset(
        ada,
        chat,
        {"id": "a", "content": "First, {{user}}.", "role": "user"},
        CHARACTER | {"role": "assistant"},
        MAIN | {"content": "Mine before {{original}}", "forbid_overrides": True},
        {"id": "off", "content": "Never.", "enabled": False},
        {"id": "swipe", "content": "On swipes.", "triggers": ["swipe"]},
        {"id": "turn", "content": "On turns.", "triggers": ["normal"]},
        HISTORY,
        {"id": "deep", "content": "Above the line.", "depth": 1, "name": "Deep"},
        {"id": "earlier", "content": "Above that.", "depth": 1, "order": 5},
        MEMORY,
        {"id": "end", "content": "The end.", "role": "assistant"},
    )
    prompt = find_texts(view)
    assert [role for role, _ in prompt] == [
        *("user", "assistant", "system", "assistant", "system", "system", "user", "assistant")
    ]
    texts = [text for _, text in prompt]
    assert texts[0] == f"First, {ada.name}."
    assert "Keeps the lighthouse." in texts[1]
    assert texts[2].startswith("Mine before ")
    assert texts[2].endswith("\n\nOn turns.")
    assert texts[3:] == [
        *("Who goes there?", "Above that.", "Above the line.", "It is me.", "The end.")
    ]
    whole = "\n".join(texts)
    assert not any(each in whole for each in ("Never.", "On swipes.", "The card's", "Stay brief."))
    blocks = {item["text"]: item["block"] for item in view["items"] if item.get("block")}
    assert blocks["Above the line."] == "Deep"
    assert view["preset"] == {"id": None, "name": "Draft", "revision": 0, "chosen_by": "preview"}


async def test_parts_of_the_card_have_blocks_of_their_own_and_overrides_hold(ada: Account) -> None:
    _, chat = await open_chat(ada)
    scenario = {"id": "scenario", "marker": "scenario", "role": "user"}
    last = {"id": "jailbreak", "marker": "post_history", "content": "Mine."}
    view = await try_preset(ada, chat, CHARACTER, scenario, MAIN, HISTORY, last)
    (_, character), (role, apart), (_, system), *_, (_, end) = find_texts(view)
    assert "Dry." in character
    assert "A storm." not in character
    assert (role, "A storm." in apart) == ("user", True)
    assert (system, end) == ("The card's prompt.", "Stay brief.")
    kept = await try_preset(
        ada, chat, MAIN | {"forbid_overrides": True}, HISTORY, last | {"forbid_overrides": True}
    )
    assert [text for _, text in find_texts(kept)] == ["Who goes there?", "It is me.", "Mine."]


async def test_system_blocks_are_one_message_only_where_they_are_squashed(ada: Account) -> None:
    _, chat = await open_chat(ada, system_prompt="", post_history_instructions="")
    blocks = [{"id": "a", "content": "One."}, {"id": "b", "content": "Two."}, HISTORY]
    squashed = await try_preset(ada, chat, *blocks)
    apart = await try_preset(ada, chat, *blocks, squash_system_messages=False)
    assert find_texts(squashed)[0] == ("system", "One.\n\nTwo.")
    assert find_texts(apart)[:2] == [("system", "One."), ("system", "Two.")]
    assert apart["totals"]["prompt"] > squashed["totals"]["prompt"]


async def test_lore_stands_behind_the_history_or_as_written_or_is_said_to_be_left_out(
    ada: Account,
) -> None:
    _, chat = await open_chat(ada)
    book = await new_book(ada)
    keyed = {"keys": ["me"], "content": "It is a spy."}
    await new_entry(ada, book, title="Spy", position="before_character", **keyed)
    await link(ada, chat, book)
    before = {"id": "worldInfoBefore", "marker": "lore_before"}
    blocks = [before, CHARACTER, HISTORY, MEMORY]
    behind = find_texts(await try_preset(ada, chat, *blocks))
    written = find_texts(await try_preset(ada, chat, *blocks, lore_placement="as_written"))
    first = find_texts(await try_preset(ada, chat, before, CHARACTER, MEMORY, HISTORY))
    without = find_texts(await try_preset(ada, chat, before, CHARACTER, HISTORY))
    assert "spy" in behind[2][1]
    assert written[0][1].startswith("It is a spy.")
    assert "spy" in first[1][1]
    assert without[0] == written[0]
    off = await try_preset(ada, chat, before | {"enabled": False}, CHARACTER, HISTORY)
    assert "spy" not in json.dumps(off["prompt"])
    (lost,) = [each for each in off["left_out"] if each["title"] == "Spy"]
    assert lost["reason"] == "the preset has no such block, or it is off"


async def test_the_nearest_choice_counts_and_one_that_is_gone_gives_way(
    ada: Account, server: Running
) -> None:
    character, chat = await open_chat(ada)
    presets = {
        name: await make_preset(ada, HISTORY, name=name) for name in ("chat", "card", "account")
    }
    path = f"{API}/characters/{character}/preset"
    ok(await ada.client.patch(f"{API}/me/settings", json={"preset_id": presets["account"]}))
    chosen = [(await preview(ada, chat))["preset"]["name"]]
    assert (await ada.client.put(path, json={"preset_id": presets["card"]})).status_code == 204
    assert ok(await ada.client.get(f"{API}/characters/{character}"))["preset_id"] == presets["card"]
    chosen.append((await preview(ada, chat))["preset"]["name"])
    await choose(ada, chat, presets["chat"])
    chosen.append((await preview(ada, chat))["preset"]["chosen_by"])
    assert chosen == ["account", "card", "chat"]
    for gone in ("chat", "card"):
        await ada.client.delete(f"{API}/presets/{presets[gone]}")
    assert (await preview(ada, chat))["preset"]["name"] == "account"

    async with server.account("grace") as grace:
        theirs = {"preset_id": await make_preset(grace, HISTORY)}
        for url in (f"{API}/chats/{chat}/settings", f"{API}/me/settings"):
            problem(await ada.client.patch(url, json=theirs), 404, "preset-not-found")
        problem(await ada.client.put(path, json=theirs), 404, "preset-not-found")
        problem(await grace.client.put(path, json=theirs), 404, "character-not-found")
        assert (await preview(ada, chat))["preset"]["name"] == "account"


async def test_its_samplers_lie_beneath_the_users_and_the_turn_records_it(
    ada: Account, vendor: OpenAIServer
) -> None:
    _, chat = await open_chat(ada)
    sampling = {"temperature": 0.3, "top_p": 0.5, "typical_p": 0.5, "start_reply_with": "{{char}}:"}
    preset = await make_preset(ada, MAIN, HISTORY, name="Cool", sampling=sampling)
    await choose(ada, chat, preset)
    own = {"sampling": {"top_p": 0.9}}
    ok(await ada.client.patch(f"{API}/chats/{chat}/settings", json=own))
    events = await ada.turn(chat, text="Hello.")
    body = vendor.requests[-1].body
    assert (body["temperature"], body["top_p"], "typical_p" in body) == (0.3, 0.9, False)
    reply = events[0].data["reply_id"]
    record = ok(await ada.client.get(f"{API}/messages/{reply}/context"))
    assert record["preset"] == {"id": preset, "name": "Cool", "revision": 1, "chosen_by": "chat"}
    *prompt, start = [each["content"] for each in body["messages"]]
    assert prompt == [each["text"] for each in record["prompt"]]
    assert start == "Mira:"
    assert any("typical_p" in note for note in record["notes"])


async def test_an_imported_preset_makes_the_prompt(ada: Account) -> None:
    _, chat = await open_chat(ada)
    upload = {"file": ("Lighthouse.json", FILE, "application/json")}
    preset = ok(await ada.client.post(f"{API}/presets/import", files=upload), 201)["preset"]
    await choose(ada, chat, preset["id"])
    prompt = json.dumps(find_texts(await preview(ada, chat)))
    for block in preset["blocks"]:
        own = block.get("content", "")
        if "marker" not in block and own and "{{" not in own and "triggers" not in block:
            assert (json.dumps(own)[1:-1] in prompt) == block.get("enabled", True), block["name"]
