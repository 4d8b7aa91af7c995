"""What a campaign's memory takes and saves, as somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Account, phone

pytestmark = pytest.mark.browser

TURNS = 6


@pytest.fixture
def played(account: Account) -> str:
    """The path of a campaign with a chat of a few turns and their summaries."""
    settings = {"memory_interval": 1}
    made = account.post("/campaigns", {"name": "Seagate", "settings": settings})
    character = account.import_card()
    chat = account.new_chat(campaign_id=made["id"], character_ids=[character["id"]])
    for place in range(TURNS):
        account.turn(chat["id"], text=f"I wait for the tide, {place}. " * 20)
    return f"/campaigns/{made['id']}"


def test_the_statistics_have_a_chart_with_a_table_and_are_empty_before_play(
    page: Page, account: Account, played: str, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#{played}")
    page.get_by_role("link", name="Statistics").click()
    seen = account.get(f"{played}/memory")
    tile = page.locator(".tiles .card").filter(has_text="Tokens saved")
    expect(tile).to_contain_text(f"of the history of {TURNS} prompts")
    chart = page.get_by_role("img", name=f"{TURNS} prompts: the whole history")
    expect(chart).to_be_visible()
    expect(chart.locator("rect")).to_have_count(2 * TURNS)
    assert_accessible(page)

    page.get_by_text("Show as table").first.click()

    table = page.get_by_role("table").first
    rows = table.locator("tbody").get_by_role("row")
    expect(rows).to_have_count(TURNS)
    last = seen["prompts"][-1]
    expect(rows.last).to_contain_text(f"{last['whole_tokens']:,}{last['sent_tokens']:,}")
    phone(page)
    assert_accessible(page)
    wide = "document.scrollingElement.scrollWidth <= innerWidth"
    assert page.evaluate(wide), "nothing is wider than a phone"

    page = page.context.new_page()
    made = account.post("/campaigns", {"name": "Empty"})
    page.goto(f"/#/campaigns/{made['id']}?tab=measures")
    expect(page.get_by_text("No statistics yet")).to_be_visible()
    expect(page.get_by_role("img", name="prompts:")).to_have_count(0)
    assert_accessible(page)


def test_a_failure_says_what_to_do_and_its_job_can_be_tried_again(
    page: Page, account: Account, played: str, assert_accessible: Callable[[Page], None]
) -> None:
    seen = account.get(f"{played}/memory")
    [chat] = account.get("/chats")["items"]
    at, job = seen["prompts"][0]["at"], str(uuid4())
    failure = {"kind": "compaction", "chat_id": chat["id"], "created_at": at}
    progress = {"done": 0, "total": 0}
    seen["problems"] = [
        {"id": str(uuid4()), "error": "model-key-refused", "job": None, **failure},
        {"id": str(uuid4()), "error": "model-key-refused", **failure}
        | {
            "job": {"id": job, "kind": "enrichment.compaction", "state": "dead", "attempts": 8}
            | {"progress": progress, "error": "model-key-refused", "counts": {}, "lane": None}
            | {"detail": None, "created_at": at, "run_after": at}
        },
    ]
    page.route("**/memory", lambda route: route.fulfill(json=seen))
    page.route("**/retry", lambda route: route.fulfill(json={}))
    page.goto(f"/#{played}?tab=measures")
    failures = page.get_by_role("list", name="Recent failures").locator("> li")
    expect(failures).to_have_count(2)
    expect(failures.first).to_contain_text("the task has since succeeded")
    expect(failures.last).to_contain_text("The provider rejected the API key.")
    assert_accessible(page)
    with page.expect_request(f"**/jobs/{job}/retry") as asked:
        failures.last.get_by_role("button", name="Try again").click()
    assert asked.value.method == "POST"
