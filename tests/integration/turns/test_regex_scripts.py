"""Regex scripts in a chat: effects on stored lines, prompts and views."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server import Account, Event, Running, ok, problem, read_events, text_of

pytestmark = pytest.mark.anyio

SCRIPTS = "/me/regex-scripts"


def script(find: str, replace: str, **more: Any) -> dict[str, Any]:
    return {"findRegex": find, "replaceString": replace, "placement": [1, 2, 5, 6], **more}


async def set_scripts(account: Account, *scripts: dict[str, Any]) -> None:
    await account.put(SCRIPTS, {"scripts": list(scripts)})


@pytest.fixture(autouse=True)
async def no_scripts(ada: Account) -> None:
    await set_scripts(ada)


async def sent(account: Account, chat: str, text: str) -> list[dict[str, Any]]:
    """Return the messages of the prompt for a line."""
    body = {"text": text, "prompt": True}
    context = await account.post(f"/chats/{chat}/context", body)
    return list(context["prompt"])


async def heard(account: Account, turn: str, *, after: int) -> list[Event]:
    """Return the events of a turn after one of them."""
    headers = {"Last-Event-ID": str(after)}
    path = f"/turns/{turn}/events"
    async with account.stream("GET", path, headers=headers) as answer:
        return [event async for event in read_events(answer)]


async def test_scripts_keep_their_order_and_revision(ada: Account) -> None:
    first = await ada.ask("GET", SCRIPTS)
    listed = [script("/a/", "b", scriptName="One", minDepth=2), script("/c/", "d", id="x")]

    answer = await ada.ask(
        "PUT", SCRIPTS, json={"scripts": listed}, headers={"If-Match": first.headers["etag"]}
    )

    assert ok(answer)["scripts"] == (await ada.get(SCRIPTS))["scripts"]
    assert [each["findRegex"] for each in answer.json()["scripts"]] == ["/a/", "/c/"]
    stale = await ada.ask(
        "PUT", SCRIPTS, json={"scripts": []}, headers={"If-Match": first.headers["etag"]}
    )
    problem(stale, 412, "revision-mismatch")
    assert len((await ada.get(SCRIPTS))["scripts"]) == 2


@pytest.mark.parametrize(
    "scripts",
    [
        [script("/a/", "b")] * 101,
        [script("/a/", "b" * 20_001)],
        [{"findRegex": 5}],
        [script("/a/", "b" * 20_000)] * 40,
    ],
)
async def test_too_many_scripts_are_refused(ada: Account, scripts: list[dict[str, Any]]) -> None:
    await set_scripts(ada, script("/kept/", ""))

    problem(await ada.ask("PUT", SCRIPTS, json={"scripts": scripts}), 422, "validation-failed")

    (kept,) = (await ada.get(SCRIPTS))["scripts"]
    assert kept["findRegex"] == "/kept/"


async def test_scripts_of_other_users_do_not_run(server: Running, ada: Account, chat: str) -> None:
    async with server.account("eve") as eve:
        await set_scripts(eve, script("/./g", "E"))
        assert (await ada.get(SCRIPTS))["scripts"] == []
        await ada.turn(chat, text="Quiet words.")
        assert (await ada.messages(chat))[-2]["text"] == "Quiet words."


async def test_scripts_change_stored_lines_and_replies(ada: Account, chat: str) -> None:
    await set_scripts(
        ada, script("/teh/g", "the", placement=[1]), script("/^/", "{{char}} says: ", placement=[2])
    )

    events = await ada.turn(chat, text="Find teh key.")

    line, reply = (await ada.messages(chat))[-2:]
    assert line["text"] == "Find the key."
    assert reply["text"].endswith(f" says: {text_of(events)}")
    # Late and returning clients receive the stored text.
    turn = events[0].data["turn_id"]
    assert text_of(await heard(ada, turn, after=0)) == reply["text"]
    assert [event.name for event in await heard(ada, turn, after=events[-2].id)][-1] == (
        "turn.completed"
    )
    view = await ada.get(f"/turns/{turn}")
    assert view["reply"]["text"] == reply["text"]


async def test_a_reply_that_scripts_empty_stays_unchanged(ada: Account, chat: str) -> None:
    await set_scripts(ada, script("/.*/gs", "", placement=[2]))

    events = await ada.turn(chat, text="Hello.")

    assert (await ada.messages(chat))[-1]["text"] == text_of(events)


async def test_a_line_that_scripts_empty_is_refused(ada: Account, chat: str) -> None:
    await set_scripts(ada, script("/.*/gs", "", placement=[1]))
    before = await ada.messages(chat)

    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Hello."})

    assert problem(answer, 422, "message-empty")["detail"].startswith("The macros or your regex")
    assert await ada.messages(chat) == before


async def test_scripts_change_prompts_by_depth(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="The first <b>line</b>.")
    plain = await sent(ada, chat, "The <i>last</i> line.")
    await set_scripts(ada, script("/<[^>]{1,20}>/g", "", promptOnly=True, minDepth=1))

    scripted = await sent(ada, chat, "The <i>last</i> line.")

    texts = [message["text"] for message in scripted]
    assert "The first line." in texts
    assert "The <i>last</i> line." in texts
    assert sum(map(len, texts)) < sum(len(message["text"]) for message in plain)
    assert any("<b>line</b>" in line["text"] for line in await ada.messages(chat))
    assert (await ada.messages(chat))[-1]["shown"] is None


async def test_scripts_change_the_view_alone(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="A (whispered) word.")
    await set_scripts(
        ada,
        script("/\\(whispered\\)/", "*soft*", markdownOnly=True),
        script("/^/", "{{char}}: ", markdownOnly=True, placement=[2]),
    )

    line = (await ada.messages(chat))[-2]

    assert (line["text"], line["shown"]) == ("A (whispered) word.", "A *soft* word.")
    greeting = (await ada.messages(chat))[0]
    assert greeting["shown"] == f"{greeting['author']}: {greeting['text']}"
    single = await ada.get(f"/messages/{line['id']}")
    assert single["shown"] == "A *soft* word."
    assert "A (whispered) word." in [each["text"] for each in await sent(ada, chat, "Go on.")]


async def test_scripts_can_run_on_edits(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="Hello.")
    line = (await ada.messages(chat))[-2]
    path = f"/messages/{line['id']}"
    await set_scripts(ada, script("/cat/g", "dog"), script("/red/g", "blue", runOnEdit=True))

    edited = await ada.patch(path, {"text": "A red cat."})

    assert edited["text"] == "A blue cat."


async def test_scripts_change_greetings(ada: Account) -> None:
    await set_scripts(ada, script("/sea/g", "ocean"), script("/^Gone$/", ""))
    character = await ada.new_character(first_mes="The sea.", alternate_greetings=["Gone"])
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])

    (greeting,) = await ada.messages(chat)

    assert greeting["text"] == "The ocean."
    swipes = (await ada.get(f"/messages/{greeting['id']}/siblings"))["items"]
    assert [swipe["text"] for swipe in swipes] == ["The ocean.", "Gone"]


async def test_scripts_change_lore_only_in_prompts(ada: Account, chat: str) -> None:
    book = await ada.post("/lorebooks", {"name": "Coast"}, 201)
    path = f"/lorebooks/{book['id']}"
    entry = {"title": "Reef", "keys": ["reef"], "content": "Sharp [note] rocks."}
    await ada.post(f"{path}/entries", entry, 201)
    await ada.put(f"/chats/{chat}/lorebooks/{book['id']}", {"state": "linked"})
    await set_scripts(ada, script("/\\[note\\] /", "", promptOnly=True, placement=[5]))

    texts = "\n".join(message["text"] for message in await sent(ada, chat, "To the reef!"))

    assert "Sharp rocks." in texts
    (kept,) = (await ada.get(f"{path}/entries"))["items"]
    assert kept["content"] == "Sharp [note] rocks."


async def test_scripts_of_a_card_need_permission_after_each_change(ada: Account) -> None:
    scripts = [script("/sea/g", "ocean", markdownOnly=True)]
    character = await ada.new_character(
        first_mes="The sea is calm.", extensions={"regex_scripts": scripts}
    )
    path = f"/characters/{character['id']}"
    chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])

    async def shown() -> str | None:
        value: str | None = (await ada.messages(chat))[0]["shown"]
        return value

    assert character["scripts_allowed"] is None
    assert await shown() is None
    await ada.put(f"{path}/regex-scripts", {"allowed": True}, 204)
    assert await shown() == "The ocean is calm."
    await ada.patch(path, {"scenario": "A storm."})
    assert await shown() == "The ocean is calm."
    scripts[0]["replaceString"] = "lake"
    changed = await ada.patch(path, {"extensions": {"regex_scripts": scripts}})
    assert changed["scripts_allowed"] is None
    assert await shown() is None
    await ada.put(f"{path}/regex-scripts", {"allowed": False}, 204)
    assert await shown() is None


async def test_a_script_is_tried_on_a_text(ada: Account) -> None:
    body = {
        "scripts": [
            script("/(\\w+)!/g", "**$1**", scriptName="Loud"),
            script("/x/", "y", disabled=True),
            script("/(/", ""),
        ],
        "text": "Stop! Now!",
    }

    tested = await ada.post(f"{SCRIPTS}/test", body)

    assert tested["text"] == "**Stop** **Now**"
    assert [(step["name"], step["state"], step["matches"]) for step in tested["steps"]] == [
        ("Loud", "changed", 2),
        ("Script 2", "not_here", 0),
        ("Script 3", "invalid", 0),
    ]


async def test_the_record_names_scripts_that_did_not_run(ada: Account, chat: str) -> None:
    await set_scripts(ada, script("/(/", "", scriptName="Broken", promptOnly=True))

    context = await ada.post(f"/chats/{chat}/context", {"text": "Hi."})

    assert any('"Broken"' in note for note in context["notes"])
