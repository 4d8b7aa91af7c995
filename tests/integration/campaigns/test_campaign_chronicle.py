"""The chronicle that a campaign has from its beginning."""

from __future__ import annotations

import pytest

from tests.support.server import Account

pytestmark = [pytest.mark.anyio]


async def test_a_campaign_has_a_chronicle_that_its_chats_take_and_that_outlives_it(
    ada: Account,
) -> None:
    campaign = await ada.post("/campaigns", {"name": "Seagate", "day": 5}, 201)
    path_of_it = f"/campaigns/{campaign['id']}"
    [chronicle] = (await ada.get("/chronicles"))["items"]
    assert chronicle["name"] == "Seagate"
    path = f"/chronicles/{chronicle['id']}/events"
    for day, summary in [(4, "The token was found"), (5, "Gareth was rescued")]:
        event = {"summary": summary, "day": day, "happened_at": "2026-01-01T00:00:00Z"}
        await ada.post(path, event, 201)
    chat = await ada.new_chat(campaign_id=campaign["id"])
    taken = await ada.get(f"/chats/{chat['id']}/settings")
    assert taken["chronicle_id"] == chronicle["id"]
    full = (await ada.get(f"{path_of_it}/context"))["full"]
    assert "### Today\n- Gareth was rescued" in full
    assert "The token was found" not in full
    await ada.delete(path_of_it)
    await ada.get(f"/chronicles/{chronicle['id']}")
