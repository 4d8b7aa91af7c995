"""Campaigns: setting up, the statistics of their memory, and their change log."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.support.browser import Account, Watch, dark, finish_deletion, phone
from tests.support.zips import seagate_vault, zipped

pytestmark = pytest.mark.browser


def right_edge(locator: Locator) -> float:
    """The place of an element's right edge on the screen, in pixels."""
    box = locator.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def test_a_campaign_is_made_set_up_and_played_in(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto("/#/")
    page.get_by_role("main").get_by_role("link", name="Campaigns").click()
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="New campaign").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("Seagate")
    dialog.get_by_label("Day", exact=True).fill("5")
    dialog.get_by_label("Time of day").fill("morning")
    dialog.get_by_label("City or region").fill("Seagate")
    assert_accessible(page)
    save = dialog.get_by_role("button", name="Save")
    assert right_edge(save) == pytest.approx(right_edge(dialog.get_by_label("Hook")), abs=1)
    save.click()
    expect(page.get_by_role("heading", level=1, name="Seagate")).to_be_visible()
    expect(page.get_by_text("Day 5, morning")).to_be_visible()
    assert_accessible(page)
    [made] = account.get("/campaigns")["items"]
    assert (made["day"], made["brief"]["city"], made["rules"]) == (5, "Seagate", "freeform")

    parts = page.get_by_role("navigation", name="Campaign sections")
    parts.get_by_role("link", name="Settings").click()
    page.get_by_label("Name", exact=True).fill("Seagate by night")
    page.get_by_label("Rounds between summaries").fill("6")
    page.get_by_role("checkbox", name="Approve new terms automatically").check()
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="Seagate by night")).to_be_visible()
    assert_accessible(page)
    settings = account.get(f"/campaigns/{made['id']}")["settings"]
    assert (settings["memory_interval"], settings["approve_terms"]) == (6, True)

    page.get_by_role("button", name="New chat").click()
    dialog.get_by_role("button", name="Start").click()
    expect(page).to_have_url(re.compile(r"#/chats/[0-9a-f-]{36}"))
    # Freeform play has no mood yet, and an empty line of it would show as a stray mark.
    expect(page.get_by_label("Your message")).to_be_visible()
    expect(page.locator(".mood")).to_be_hidden()
    [chat] = account.get("/chats")["items"]
    assert chat["campaign_id"] == made["id"]


def test_a_chat_joins_a_campaign_takes_a_point_of_view_and_outlives_it(
    page: Page, account: Account, assert_accessible: Callable[[Page], None]
) -> None:
    campaign = account.post("/campaigns", {"name": "Seagate"})["id"]
    chat = account.new_chat(title="The storm")["id"]
    page.goto(f"/#/campaigns/{campaign}")
    page.get_by_role("button", name="Add an existing chat").click()
    page.get_by_role("menuitem", name="The storm").click()
    sessions = page.get_by_role("list", name="Sessions")
    expect(sessions.get_by_role("link", name="The storm")).to_be_visible()

    page.goto(f"/#/chats/{chat}?panel=settings")
    choice = page.get_by_role("complementary").get_by_label("Campaign", exact=True)
    expect(choice).to_have_value(campaign)
    choice.select_option(label="None")
    expect(page.get_by_text("Saved", exact=True)).to_be_visible()
    assert account.get(f"/chats/{chat}")["campaign_id"] is None

    # Replies are told from a point of view.
    assert account.client.patch(f"/chats/{chat}", json={"campaign_id": campaign}).is_success
    page = page.context.new_page()
    jake = account.post(f"/campaigns/{campaign}/entities", {"kind": "pc", "name": "Jake"})["id"]
    page.goto(f"/#/chats/{chat}?panel=settings")
    choice = page.get_by_role("complementary").get_by_label("Point of view")
    expect(choice).to_have_value("null")
    for label, wanted in (("Jake", jake), ("Everyone", "public"), ("Game master", None)):
        with page.expect_response(f"**/chats/{chat}/settings"):
            choice.select_option(label=label)
        assert account.get(f"/chats/{chat}/settings").get("viewpoint") == wanted

    # Deleting a campaign keeps its chats.
    page = page.context.new_page()
    phone(page)
    dark(page)
    page.goto("/#/campaigns")
    expect(page.get_by_role("link", name="The storm")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="More actions for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("link", name="Seagate")).to_be_visible()
    page.get_by_role("button", name="More actions for Seagate").click()
    page.get_by_role("menuitem", name="Delete").click()
    finish_deletion(page)
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    assert account.get("/campaigns")["items"] == []
    assert account.get(f"/chats/{chat}")["campaign_id"] is None


def test_a_vault_is_imported_and_says_what_was_not_understood(
    page: Page, account: Account, watch: Watch, assert_accessible: Callable[[Page], None]
) -> None:
    watch.expected.append("/campaigns/import")
    vault = seagate_vault()
    vault["seagate-vault/canon/npcs/odd.md"] = b"---\nname: [unclosed\n---\n"
    page.goto("/#/campaigns")
    expect(page.get_by_text("A campaign is a world")).to_be_visible()
    files: list[FilePayload] = [
        {"name": name, "mimeType": "application/zip", "buffer": data}
        for name, data in (("Seagate.zip", zipped(vault)), ("broken.zip", b"no zip"))
    ]
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Import").click()
    chosen.value.set_files(files)
    imports = page.get_by_role("region", name="Imports")
    expect(imports.get_by_role("status")).to_have_text("1 of 2 imported, 1 failed")
    expect(imports.get_by_role("button", name="Retry broken.zip")).to_be_visible()
    imports.get_by_text("not recognized").click()
    expect(imports.get_by_text("odd.md")).to_be_visible()
    assert_accessible(page)

    [made] = account.get("/campaigns")["items"]
    imports.get_by_role("link", name=made["name"]).click()
    page.get_by_role("link", name="World").click()
    expect(page.get_by_role("list", name="Party")).to_contain_text("Jake")
    expect(page.get_by_role("list", name="Present")).to_contain_text("Marlena")


def test_a_campaign_is_saved_as_a_file_and_comes_in_again(page: Page, account: Account) -> None:
    campaign = account.post("/campaigns", {"name": "Seagate", "day": 5})["id"]
    page.goto(f"/#/campaigns/{campaign}")
    files: list[FilePayload] = []
    for label in ("Export as zip", "Export as Markdown vault"):
        page.get_by_role("button", name="More actions for Seagate").click()
        with page.expect_download() as saved:
            page.get_by_role("menuitem", name=label).click()
        data = saved.value.path().read_bytes()
        files.append({"name": f"{label}.zip", "mimeType": "application/zip", "buffer": data})
    page.get_by_role("link", name="Campaigns").click()
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Import").click()
    chosen.value.set_files(files)
    expect(page.get_by_role("region", name="Imports").get_by_role("status")).to_have_text(
        "2 of 2 imported"
    )
    found = [(each["name"], each["day"]) for each in account.get("/campaigns")["items"]]
    assert found == [("Seagate", 5)] * 3


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


@pytest.fixture
def seagate(account: Account) -> str:
    """The path of a campaign with one character that was moved and renamed."""
    path = f"/campaigns/{account.post('/campaigns', {'name': 'Seagate', 'day': 5})['id']}"
    shop = account.post(f"{path}/entities", {"kind": "location", "name": "The Salty Sigil"})["id"]
    jake = {"kind": "pc", "name": "Jake", "attributes": {"hp": 13, "inventory": ["fork"]}}
    item = f"{path}/entities/{account.post(f'{path}/entities', jake)['id']}"
    for patch in ({"location_id": shop}, {"attributes": {"hp": 9, "inventory": ["fork", "cloak"]}}):
        assert account.client.patch(item, json=patch).is_success
    return path


def test_a_change_is_undone_and_leads_to_its_message_while_its_branch_is_active(
    page: Page, account: Account, seagate: str, assert_accessible: Callable[[Page], None]
) -> None:
    page.goto(f"/#{seagate}?tab=ledger")
    lines = (
        page.get_by_role("list", name="Change log").get_by_role("listitem").filter(has_text="You")
    )
    expect(lines).to_have_count(5)
    expect(lines.nth(0)).to_contain_text("HP 9")
    expect(lines.nth(0)).to_contain_text("Inventory cloak")
    expect(lines.nth(1)).to_contain_text("Location The Salty Sigil")
    expect(lines.nth(2)).to_contain_text("Created")
    assert_accessible(page)

    lines.nth(0).get_by_role("button", name="Undo the change of Jake").click()

    expect(lines.nth(0).get_by_text("Undone", exact=True)).to_be_visible()
    expect(lines.nth(0).get_by_role("button", name="Undo")).to_have_count(0)
    assert_accessible(page)
    [jake] = account.get(f"{seagate}/entities", kind="pc")["items"]
    assert jake["attributes"] == {"hp": 13, "inventory": ["fork"]}

    page = page.context.new_page()
    chat = account.new_chat(campaign_id=seagate.removeprefix("/campaigns/"), title="Morning")["id"]
    account.turn(chat, text="I rest.")
    line, reply = account.get(f"/chats/{chat}/messages")["items"]
    body = {"day": 6}
    answer = account.client.patch(seagate, json=body, params={"message_id": reply["id"]})
    assert answer.is_success, answer.text
    page.goto(f"/#{seagate}?tab=ledger")
    newest = page.get_by_role("list", name="Change log").get_by_role("listitem").first
    expect(newest).to_contain_text("Day 6")
    newest.get_by_role("button", name="Message").click()
    expect(page.get_by_role("article").nth(1)).to_be_visible()
    expect(page).to_have_url(f"{page.url.split('#')[0]}#/chats/{chat}")

    account.post(f"/messages/{line['id']}/activate", {"follow": False})
    page.goto(f"/#{seagate}?tab=ledger")
    expect(newest.get_by_text("not on the current branch")).to_be_visible()
    expect(page.get_by_text("Day 5", exact=True)).to_be_visible()
    assert_accessible(page)
    newest.get_by_role("button", name="Message").click()
    expect(page.get_by_text("That message was deleted")).to_be_visible()


def test_a_version_is_restored_and_proposed_terms_are_answered(
    page: Page, account: Account, seagate: str, assert_accessible: Callable[[Page], None]
) -> None:
    account.post(f"{seagate}/clocks", {"name": "The tide"})
    phone(page)
    page.goto(f"/#{seagate}?tab=versions")
    versions = page.get_by_role("list", name="Versions").locator("> li")
    expect(versions).to_have_count(6)
    third = versions.filter(has_text="Version 3")
    third.locator("summary").click()
    expect(third.locator("dd").filter(has_text="9")).to_have_text("139")
    expect(third).to_contain_text("The Salty Sigil")
    expect(third).to_contain_text("Created since")
    assert_accessible(page)

    third.get_by_role("button", name="Restore version 3").click()
    expect(page.get_by_text("The world returns to version 3")).to_be_visible()
    finish_deletion(page, "POST")

    expect(versions).to_have_count(7)
    [jake] = account.get(f"{seagate}/entities", kind="pc")["items"]
    assert (jake["attributes"]["hp"], jake["location_id"]) == (13, None)
    assert account.get(f"{seagate}/clocks")["items"] == []

    page = page.context.new_page()
    for term in ("saltreader", "GLASSWAY", "Quillon"):
        body = {"term": term, "status": "proposed", "source": "auto", "definition": f"A {term}."}
        account.post(f"{seagate}/glossary", body)
    campaign = seagate.removeprefix("/campaigns/")
    chat = account.new_chat(campaign_id=campaign, title="Morning")["id"]
    page.goto(f"/#/chats/{chat}?panel=world")
    page.get_by_role("link", name="Glossary 3 proposed").click()
    proposed = page.get_by_role("list", name="Proposed", exact=True).get_by_role("listitem")
    expect(proposed).to_have_count(3)
    assert_accessible(page)

    salt = proposed.filter(has_text="saltreader")
    salt.get_by_role("button", name="Definition: A saltreader.").click()
    salt.get_by_label("Definition", exact=True).fill("Who reads brine.")
    expect(salt.get_by_role("button", name="Definition: Who reads brine.")).to_be_visible()
    salt.get_by_role("button", name="Done").click()
    salt.get_by_role("button", name="Approve").click()
    glass = proposed.filter(has_text="GLASSWAY")
    glass.get_by_role("button", name="Term only").click()
    proposed.filter(has_text="Quillon").get_by_role("button", name="Reject").click()

    expect(proposed).to_have_count(0)
    approved = page.get_by_role("list", name="Approved", exact=True)
    expect(approved).to_contain_text("saltreader")
    page.get_by_role("button", name="Add term").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Term").fill("Muffle")
    dialog.get_by_role("button", name="Save").click()
    expect(approved).to_contain_text("Muffle")
    stored = {each["term"]: each for each in account.get(f"{seagate}/glossary")["items"]}
    assert {name: each["status"] for name, each in stored.items()} == {
        "saltreader": "approved",
        "GLASSWAY": "raw",
        "Quillon": "rejected",
        "Muffle": "approved",
    }
    assert stored["saltreader"]["definition"] == "Who reads brine."
