"""Prompt presets: made, read, changed, chosen, brought in and out, deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.presets import service
from tests.support.server import Account, ok, problem
from tests.support.shared import ada, server, shared_url

__all__ = ["ada", "server", "shared_url"]

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
    assert _stored(after) - _stored(before) > len(FILE) // 3
    broken = await ada.client.post(f"{PRESETS}/import", files={"file": ("x", b"{}")})
    problem(broken, 422, "unreadable-preset")
    assert len(ok(await ada.client.get(PRESETS))["items"]) == 1


async def test_an_account_holds_so_many(ada: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_PRESETS", 1)
    await make(ada)
    problem(await ada.client.post(PRESETS, json={"name": "More"}), 409, "presets-full")


def _stored(usage: Any) -> int:
    used: int = next(each["used"] for each in usage["items"] if each["quota"] == "stored_bytes")
    return used
