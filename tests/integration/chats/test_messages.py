"""Tests of messages: the active path, swipes, edits, branches, hiding, deletion and forks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory import API, link, new_book
from tests.support.server import Account, ok, problem, read_pages

pytestmark = pytest.mark.anyio

Line = dict[str, Any]


@pytest.fixture
async def lines(ada: Account, chat: str) -> list[Line]:
    """A greeting, a question, an answer, a question and an answer."""
    await ada.turn(chat, text="Who is there?")
    await ada.turn(chat, text="What do you want?")
    return await ada.messages(chat)


async def patch(ada: Account, message_id: str, **body: Any) -> Line:
    changed: Line = ok(await ada.client.patch(f"/api/v1/messages/{message_id}", json=body))
    return changed


async def activate(ada: Account, message_id: str, **body: Any) -> Line:
    url = f"/api/v1/messages/{message_id}/activate"
    return ok(await ada.client.post(url, json=body or None))  # type: ignore[no-any-return]


async def page(ada: Account, chat: str, **query: Any) -> dict[str, Any]:
    return ok(  # type: ignore[no-any-return]
        await ada.client.get(f"/api/v1/chats/{chat}/messages", params=query)
    )


def read_texts(lines: list[Line]) -> list[str]:
    return [line["text"] for line in lines]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 500])
async def test_pages_of_the_path_have_no_gaps_and_nothing_twice(
    ada: Account, chat: str, lines: list[Line], limit: int
) -> None:
    seen: list[Line] = []
    before: int | None = None
    while True:
        query = {"limit": limit} if before is None else {"limit": limit, "before": before}
        part = await page(ada, chat, **query)
        assert len(part["items"]) <= limit
        seen = part["items"] + seen
        before = part["previous"]
        if before is None:
            break
    assert seen == lines
    assert [line["position"] for line in seen] == [0, 1, 2, 3, 4]


async def test_a_page_says_of_each_line_which_swipe_of_how_many_it_is(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await ada.turn(chat, regenerate_of=lines[4]["id"])
    await ada.turn(chat, regenerate_of=(await ada.messages(chat))[4]["id"])
    places = [(line["sibling"], line["sibling_count"]) for line in await ada.messages(chat)]
    assert places == [(1, 2), (1, 1), (1, 1), (1, 1), (3, 3)]
    await activate(ada, lines[4]["id"])
    assert (await ada.messages(chat))[4]["sibling"] == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"limit": 0}, 422),
        ({"limit": 501}, 422),
        ({"limit": "many"}, 422),
        ({"before": "then"}, 422),
        ({"before": -1}, 422),
        ({"before": 2**31}, 422),
        ({"before": 10**30}, 422),
    ],
)
async def test_a_page_that_makes_no_sense_is_refused(
    ada: Account, chat: str, query: dict[str, Any], status: int
) -> None:
    answer = await ada.client.get(f"/api/v1/chats/{chat}/messages", params=query)
    assert answer.status_code == status


@pytest.mark.parametrize("before", [0])
async def test_nothing_stands_above_the_first_line(ada: Account, chat: str, before: int) -> None:
    assert await page(ada, chat, before=before) == {"items": [], "previous": None}


@pytest.mark.parametrize("before", [5, 2**31 - 1])
async def test_a_place_far_behind_the_end_reads_from_the_end(
    ada: Account, chat: str, lines: list[Line], before: int
) -> None:
    assert (await page(ada, chat, before=before))["items"] == lines


async def test_a_client_that_has_the_path_gets_304_until_it_changes(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    address = f"/api/v1/chats/{chat}/messages"
    tags = [(await ada.client.get(address)).headers["etag"]]

    async def has_changed() -> bool:
        answer = await ada.client.get(address, headers={"If-None-Match": tags[-1]})
        tags.append(answer.headers["etag"])
        assert answer.status_code in {200, 304}
        assert bool(answer.content) == (answer.status_code == 200)
        return answer.status_code == 200

    assert not await has_changed()
    await patch(ada, lines[1]["id"], hidden=True)
    assert await has_changed()
    assert not await has_changed()
    await patch(ada, lines[3]["id"], text="Come in.")
    assert await has_changed()
    await ada.turn(chat)
    assert await has_changed()
    await activate(ada, lines[4]["id"])
    assert await has_changed()
    assert not await has_changed()


async def test_editing_keeps_the_old_text_and_what_followed_it(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    edited = await patch(ada, lines[1]["id"], text="Is anybody there?")
    assert (edited["sibling"], edited["sibling_count"]) == (2, 2)
    assert (edited["role"], edited["author"]) == (lines[1]["role"], lines[1]["author"])
    assert read_texts(await ada.messages(chat)) == [lines[0]["text"], "Is anybody there?"]
    await activate(ada, lines[1]["id"])
    assert await ada.messages(chat) == [
        {**line, "sibling_count": 2} if line["position"] == 1 else line for line in lines
    ]


async def test_an_edited_line_is_answered_on_a_branch_of_its_own(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    edited = await patch(ada, lines[3]["id"], text="Come in.")
    events = await ada.turn(chat)
    assert events[0].data["user_message_id"] == edited["id"]
    path = await ada.messages(chat)
    assert read_texts(path[:4]) == [*read_texts(lines[:3]), "Come in."]
    assert path[4]["parent_id"] == edited["id"]


async def test_activating_with_follow_false_ends_the_path_there(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await activate(ada, lines[2]["id"], follow=False)
    assert read_texts(await ada.messages(chat)) == read_texts(lines[:3])
    await ada.turn(chat, text="And a branch.")
    path = await ada.messages(chat)
    assert read_texts(path[:4]) == [*read_texts(lines[:3]), "And a branch."]
    assert path[3]["sibling_count"] == 2


async def test_going_back_to_a_swipe_goes_on_where_it_last_ended(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await ada.turn(chat, regenerate_of=lines[2]["id"])
    other = await ada.messages(chat)
    assert len(other) == 3
    await activate(ada, lines[2]["id"])
    assert read_texts(await ada.messages(chat)) == read_texts(lines)
    await activate(ada, other[2]["id"])
    assert read_texts(await ada.messages(chat)) == read_texts(other)


async def test_the_branch_that_was_active_last_is_followed(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await activate(ada, lines[0]["id"], follow=False)
    await ada.turn(chat, text="A shorter branch.")
    shorter = await ada.messages(chat)
    await activate(ada, lines[0]["id"], follow=False)
    await activate(ada, lines[0]["id"], follow=True)
    assert read_texts(await ada.messages(chat)) == read_texts(shorter)


async def test_siblings_are_listed_in_the_order_they_were_made(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    url = f"/api/v1/messages/{lines[0]['id']}/siblings"
    both = ok(await ada.client.get(url))["items"]
    assert read_texts(both) == ["The door creaks open.", "A knock at the window."]
    assert [each["is_active"] for each in both] == [True, False]
    assert [each["sibling"] for each in both] == [1, 2]


async def test_siblings_come_in_pages(ada: Account, chat: str, lines: list[Line]) -> None:
    made = [lines[1]["id"]]
    for n in range(7):
        made.append((await patch(ada, made[-1], text=f"Who is there, {n}?"))["id"])
    url = f"/api/v1/messages/{made[0]}/siblings"
    pages = await read_pages(ada.client.get, url, limit=3)
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [each["id"] for page in pages for each in page] == made
    problem(await ada.client.get(url, params={"limit": 501}), 422, "validation-failed")
    # After a deletion the sibling before it becomes active, or else the one after it.
    await activate(ada, made[3])
    ok(await ada.client.delete(f"/api/v1/messages/{made[3]}"))
    assert (await ada.messages(chat))[1]["id"] == made[2]
    await activate(ada, made[0])
    ok(await ada.client.delete(f"/api/v1/messages/{made[0]}"))
    assert (await ada.messages(chat))[1]["id"] == made[1]


async def test_a_hidden_line_is_shown_and_left_out_of_prompts(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    hidden = await patch(ada, lines[1]["id"], hidden=True)
    assert hidden["hidden"]
    assert hidden["id"] == lines[1]["id"]
    assert read_texts(await ada.messages(chat)) == read_texts(lines)
    url = f"/api/v1/chats/{chat}/context"
    context = ok(await ada.client.get(url, params={"text": "Hm?", "prompt": "true"}))
    sent = [message["text"] for message in context["prompt"]]
    assert lines[1]["text"] not in sent
    assert lines[2]["text"] in sent
    assert context["history"]["hidden"] == [1]
    await patch(ada, lines[1]["id"], hidden=False)
    context = ok(await ada.client.get(url, params={"text": "Hm?", "prompt": "true"}))
    assert lines[1]["text"] in [message["text"] for message in context["prompt"]]


async def test_an_edited_copy_of_a_hidden_line_is_hidden_too(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await patch(ada, lines[1]["id"], hidden=True)
    assert (await patch(ada, lines[1]["id"], text="Psst."))["hidden"]


async def test_deleting_takes_what_follows_and_goes_on_through_the_swipe_before(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await ada.turn(chat, regenerate_of=lines[2]["id"])
    other = await ada.messages(chat)
    await ada.turn(chat, text="Further.")
    gone = ok(await ada.client.delete(f"/api/v1/messages/{other[2]['id']}"))
    assert gone == {"deleted": 3, "leaf_id": lines[4]["id"]}
    assert read_texts(await ada.messages(chat)) == read_texts(lines)
    problem(await ada.client.get(f"/api/v1/messages/{other[2]['id']}"), 404, "message-not-found")


async def test_a_chat_can_be_emptied_and_begun_again(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    for greeting in ok(await ada.client.get(f"/api/v1/messages/{lines[0]['id']}/siblings"))[
        "items"
    ]:
        ok(await ada.client.delete(f"/api/v1/messages/{greeting['id']}"))
    assert await page(ada, chat) == {"items": [], "previous": None}
    assert ok(await ada.client.get(f"/api/v1/chats/{chat}"))["leaf_id"] is None
    await ada.turn(chat, text="Anew.")
    assert [line["position"] for line in await ada.messages(chat)] == [0, 1]


@pytest.mark.every_database
async def test_forking_copies_the_path_and_leaves_the_chat_alone(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    await patch(ada, lines[1]["id"], hidden=True)
    fork = ok(
        await ada.client.post(
            f"/api/v1/chats/{chat}/fork", json={"message_id": lines[2]["id"], "title": "What if"}
        ),
        201,
    )
    assert fork["title"] == "What if"
    copies = await ada.messages(fork["id"])
    assert read_texts(copies) == read_texts(lines[:3])
    assert [line["hidden"] for line in copies] == [False, True, False]
    assert [line["sibling_count"] for line in copies] == [1, 1, 1]
    assert {line["id"] for line in copies}.isdisjoint(line["id"] for line in lines)
    ok(await ada.client.delete(f"/api/v1/messages/{copies[0]['id']}"))
    assert read_texts(await ada.messages(chat)) == read_texts(lines)


@pytest.mark.every_database
async def test_a_fork_takes_members_persona_settings_and_variables_along(ada: Account) -> None:
    character = await ada.new_character(description="{{setvar::mood::calm}}", first_mes="Hm.")
    persona = ok(await ada.client.post("/api/v1/personas", json={"name": "Captain"}), 201)
    chat = (await ada.new_chat(character_ids=[character["id"]], persona_id=persona["id"]))["id"]
    note = {"authors_note": {"text": "Mood: {{getvar::mood}}", "depth": 0}}
    ok(await ada.client.patch(f"/api/v1/chats/{chat}/settings", json=note))
    await ada.turn(chat, text="Hello.")
    without = {"description": "A ferryman."}
    ok(await ada.client.patch(f"/api/v1/characters/{character['id']}", json=without))
    leaf = (await ada.messages(chat))[-1]["id"]
    fork = ok(await ada.client.post(f"/api/v1/chats/{chat}/fork", json={"message_id": leaf}), 201)
    for name in ("character_ids", "persona_id", "title"):
        assert fork[name] == ok(await ada.client.get(f"/api/v1/chats/{chat}"))[name]
    settings = [
        ok(await ada.client.get(f"/api/v1/chats/{each}/settings")) for each in (chat, fork["id"])
    ]
    assert settings[0] == settings[1]
    assert settings[0]["authors_note"] == note["authors_note"]
    for each in (chat, fork["id"]):
        url = f"/api/v1/chats/{each}/context"
        context = ok(await ada.client.get(url, params={"text": "So?", "prompt": "true"}))
        assert "Mood: calm" in [message["text"] for message in context["prompt"]]


async def test_a_message_of_another_chat_can_not_be_forked_or_regenerated_here(
    ada: Account, chat: str, lines: list[Line]
) -> None:
    other = (await ada.new_chat())["id"]
    answer = await ada.client.post(
        f"/api/v1/chats/{other}/fork", json={"message_id": lines[2]["id"]}
    )
    problem(answer, 422, "validation-failed")
    answer = await ada.client.post(
        f"/api/v1/chats/{other}/turns", json={"regenerate_of": lines[2]["id"]}
    )
    problem(answer, 422, "validation-failed")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ({}, 400, "bad-request"),
        ({"text": "a", "hidden": True}, 400, "bad-request"),
        ({"text": None}, 422, "validation-failed"),
        ({"text": 7}, 422, "validation-failed"),
        ({"hidden": "yes"}, 422, "validation-failed"),
        ({"txt": "a"}, 422, "validation-failed"),
        ({"text": " \n\t"}, 422, "message-empty"),
        ({"text": "a" * 100_001}, 422, "message-too-long"),
    ],
)
async def test_a_change_that_is_none_is_refused_and_changes_nothing(
    ada: Account, chat: str, body: dict[str, Any], status: int, slug: str
) -> None:
    (line,) = await ada.messages(chat)
    problem(await ada.client.patch(f"/api/v1/messages/{line['id']}", json=body), status, slug)
    assert await ada.messages(chat) == [line]


async def test_half_an_emoji_is_refused_and_not_stored(ada: Account, chat: str) -> None:
    half = b'{"text": "so \\ud83d"}'
    headers = {"Content-Type": "application/json"}
    for method, url in (
        ("PATCH", f"/api/v1/messages/{(await ada.messages(chat))[0]['id']}"),
        ("POST", f"/api/v1/chats/{chat}/turns"),
    ):
        answer = await ada.client.request(method, url, content=half, headers=headers)
        assert 400 <= answer.status_code < 500
    assert len(await ada.messages(chat)) == 1


async def test_texts_come_back_as_they_went_in(ada: Account, chat: str) -> None:
    (line,) = await ada.messages(chat)
    for text in (
        "nul \0 byte",
        "👩🏽\u200d🚀",
        "\u202eright to left",
        "{{user}} {% x %}",
        " a\r\n",
    ):
        assert (await patch(ada, line["id"], text=text))["text"] == text


async def make_fork(ada: Account, chat: str, message_id: str) -> str:
    made = await ada.client.post(f"{API}/chats/{chat}/fork", json={"message_id": message_id})
    return str(ok(made, 201)["id"])


async def make_linked_book(account: Account, chat: str, state: str, **entry: Any) -> str:
    book = await new_book(account, entry)
    await link(account, chat, book, state)
    return book


async def reasons(ada: Account, chat: str, text: str) -> list[str]:
    answer = await ada.client.get(f"{API}/chats/{chat}/context", params={"text": text})
    return [item["reason"] for item in ok(answer)["retrieved"]]


async def test_links_and_switches_come_along(ada: Account, chat: str) -> None:
    linked = await make_linked_book(ada, chat, "linked", keys=["inn"], content="Warm.")
    off = await make_linked_book(ada, chat, "off", keys=["inn"], content="Cold.")
    leaf = (await ada.messages(chat))[-1]["id"]
    copy = await make_fork(ada, chat, leaf)
    for book, state in ((linked, "linked"), (off, "off")):
        answer = await ada.client.get(f"{API}/chats/{copy}/lorebooks/{book}")
        assert ok(answer)["state"] == state


@pytest.mark.every_database
async def test_sticky_entries_stay_sticky_in_a_copy(ada: Account, chat: str) -> None:
    await make_linked_book(ada, chat, "linked", keys=["inn"], content="Warm.", sticky=20)
    await ada.turn(chat, text="We come to an inn.")
    for _ in range(2):
        await ada.turn(chat, text="We go on.")
    lines = await ada.messages(chat)
    assert "sticky" in (await reasons(ada, chat, "And now?"))[0]
    assert (
        "sticky" in (await reasons(ada, await make_fork(ada, chat, lines[-1]["id"]), "And now?"))[0]
    )
    before_it = await make_fork(ada, chat, lines[0]["id"])
    assert await reasons(ada, before_it, "And now?") == []
