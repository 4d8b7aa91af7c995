"""The chronicle that a campaign has from its beginning."""

from __future__ import annotations

import pytest

from tests.support.server import Account, ok

pytestmark = [pytest.mark.anyio]


async def test_a_campaign_has_a_chronicle_that_its_chats_take_and_that_outlives_it(
    ada: Account,
) -> None:
    campaign = ok(
        await ada.client.post("/api/v1/campaigns", json={"name": "Seagate", "day": 5}), 201
    )
    path_of_it = f"/api/v1/campaigns/{campaign['id']}"
    [chronicle] = ok(await ada.client.get("/api/v1/chronicles"))["items"]
    assert chronicle["name"] == "Seagate"
    path = f"/api/v1/chronicles/{chronicle['id']}/events"
    for day, summary in [(4, "The token was found"), (5, "Gareth was rescued")]:
        event = {"summary": summary, "day": day, "happened_at": "2026-01-01T00:00:00Z"}
        ok(await ada.client.post(path, json=event), 201)
    chat = await ada.new_chat(campaign_id=campaign["id"])
    taken = ok(await ada.client.get(f"/api/v1/chats/{chat['id']}/settings"))
    assert taken["chronicle_id"] == chronicle["id"]
    full = ok(await ada.client.get(f"{path_of_it}/context"))["full"]
    assert "### Today\n- Gareth was rescued" in full
    assert "The token was found" not in full
    ok(await ada.client.delete(path_of_it), 204)
    ok(await ada.client.get(f"/api/v1/chronicles/{chronicle['id']}"))
