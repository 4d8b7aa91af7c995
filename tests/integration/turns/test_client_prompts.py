"""Turns with the prompt of a client, to which Talekeeper adds its memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.chats import files
from backend.chats.models import FILE_DATA, MessageFile, StoredFile
from backend.context.budget import ContextOverflowError
from backend.generation.model import PromptImage, PromptMessage, Role
from backend.generation.sampling import Sampling
from backend.turns.api.schemas import ChoiceRequest, TurnRequest
from backend.turns.prompt.client import ClientMessage, ClientPrompt
from tests.fakes.openai_server import OpenAIServer, called, reply
from tests.integration.turns.following import follow
from tests.integration.turns.playing import FINISH, named, new_game
from tests.integration.turns.playing import QUESTION as CHOICE
from tests.integration.turns.seeding import identity_of
from tests.support.memory import (
    context_of,
    embedding,
    link,
    new_book,
    remembering,
    set_chat,
    tell,
)
from tests.support.models import asking
from tests.support.server import Account, Event, Running

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where did the captain bury the astrolabe, under which bell?"
HEAD = "You are Mara, a lighthouse keeper."
PICTURE = PromptImage(media_type="image/png", data=b"\x89PNG" * 500)

Shown = list[tuple[str, str]]


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    """A server with a memory, and a model whose replies can be begun."""
    settings, folder = asking(model), tmp_path_factory.mktemp("data")
    async with (
        OpenAIServer() as vectors,
        remembering(
            shared_url, folder, **settings, **embedding(vectors), openai_server="llama-cpp"
        ) as server,
    ):
        yield server


def said(role: Role, text: str, position: int | None = None) -> ClientMessage:
    return ClientMessage(message=PromptMessage(role, text), position=position)


async def read_path(ada: Account, chat: str) -> list[ClientMessage]:
    """Return the stored messages of the active path, as a client would send them."""
    return [said(each["role"], each["text"], each["position"]) for each in await ada.messages(chat)]


def make_prompt(
    *messages: ClientMessage, line: str | None = None, tail: Sequence[str] = (), **more: Any
) -> ClientPrompt:
    """Return a client's prompt that ends with a line and the instructions after it."""
    end = [] if line is None else [said("user", line)]
    return ClientPrompt(
        messages=[*messages, *end, *(said("system", text) for text in tail)],
        line=None if line is None else len(messages),
        **more,
    )


async def take(
    server: Running, ada: Account, chat: str, client: ClientPrompt, **request: Any
) -> list[Event]:
    """Take a turn to its end and return its events."""
    identity = await identity_of(server, ada)
    turn_id = await server.parts.turns.take(
        identity, UUID(chat), TurnRequest(**request), client=client
    )
    return await follow(ada.client, str(turn_id))


async def explain(ada: Account, events: list[Event]) -> dict[str, Any]:
    """Return the context of a turn's reply."""
    assert events[-1].name == "turn.completed", events[-1]
    return await context_of(ada, events[0].data["reply_id"])


def last_body(model: OpenAIServer) -> dict[str, Any]:
    """Return the body of the last request for a reply, not of a background task."""
    bodies = [each.body for each in model.requests if each.body]
    return next(
        body
        for body in reversed(bodies)
        if not str(body["messages"][0]["content"]).startswith("Task:")
    )


def sent(model: OpenAIServer) -> Shown:
    """Return the messages of the last request."""
    return [(each["role"], each["content"]) for each in last_body(model)["messages"]]


def shown(context: dict[str, Any]) -> Shown:
    return [(each["role"], each["text"]) for each in context["prompt"]]


def as_sent(messages: Sequence[ClientMessage]) -> Shown:
    return [(each.message.role, each.message.text) for each in messages]


def list_kinds(context: dict[str, Any]) -> list[str]:
    return [item["kind"] for item in context["items"]]


def rain(count: int, first: int = 0) -> list[str]:
    """Return different lines without meaning."""
    return [f"It rains on roof number {n}." for n in range(first, first + count)]


async def test_a_line_outside_the_clients_window_is_added_after_its_history(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, [*rain(4), FACT, *rain(115, 10)])
    window = (await read_path(ada, chat))[-20:]
    head = said("system", HEAD)
    events = await take(
        server,
        ada,
        chat,
        make_prompt(head, *window, line=QUESTION, tail=["Write two sentences."]),
        text=QUESTION,
    )
    prompt = sent(model)
    assert prompt[:21] == as_sent([head, *window])
    assert prompt[-2:] == [("user", QUESTION), ("system", "Write two sentences.")]
    [(role, memory)] = prompt[21:-2]
    assert role == "system"
    assert sum(text.count(FACT) for _, text in prompt) == memory.count(FACT) == 1
    assert not any(text in memory for _, text in prompt[1:21])

    context = await explain(ada, events)
    assert shown(context) == prompt
    assert [(item["kind"], item["title"]) for item in context["items"]] == [
        ("client_system", "Client's system message"),
        ("user_line", "User's line"),
        ("client_instruction", "Client's instruction"),
    ]
    assert {item["reason"] for item in context["items"]} == {"sent by the client"}
    replaced = {each["kind"]: each["reason"] for each in context["left_out"]}
    assert replaced["system_prompt"] == "the client's messages replace it"
    first, last = window[0].position, window[-1].position
    assert (context["history"]["first"], context["history"]["last"]) == (first, last)
    assert context["history"]["changed"] == []
    stored = await ada.messages(chat)
    assert [each["text"] for each in stored[-2:]] == [QUESTION, "The rain has stopped."]

    window = (await read_path(ada, chat))[-22:]
    events = await take(server, ada, chat, make_prompt(head, *window, line="And?"), text="And?")
    assert sent(model)[: len(prompt) - 3] == prompt[:-3]
    difference = (await context_of(ada, events[0].data["reply_id"], diff="previous"))["difference"]
    assert difference["shared_prefix"] >= len(prompt) - 3


async def test_the_clients_notes_keep_their_exact_place(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, rain(4))
    one, two, three, four, five = await read_path(ada, chat)
    client = make_prompt(
        *(said("system", HEAD), said("system", "[Start a new Chat]"), said("user", "Example?")),
        *(one, two, said("system", "It is night."), three, said("user", "Go on."), four),
        *(five, said("system", "Mara limps.")),
        line="And now?",
        tail=["Be brief.", "In English."],
    )
    context = await explain(ada, await take(server, ada, chat, client, text="And now?"))
    assert sent(model) == as_sent(client.messages) == shown(context)
    assert list_kinds(context).count("client_note") == 4
    assert context["history"]["count"] == 5


@pytest.mark.parametrize("places", ["before", "instead"])
async def test_own_sections_follow_the_clients_head_or_are_left_out(
    server: Running, ada: Account, model: OpenAIServer, places: str
) -> None:
    character = await ada.new_character(
        description="{{char}} is old.",
        mes_example="<START>\nMara: Hush.",
        post_history_instructions="Be kind.",
        extensions={"depth_prompt": {"prompt": "She limps.", "depth": 1, "role": "system"}},
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    await set_chat(ada, chat, authors_note={"text": "It rains.", "depth": 2})
    book = await new_book(
        ada,
        {"title": "Sea", "content": "The sea is deep.", "constant": True},
        {"title": "Owl", "content": "Owls are wise.", "keys": ["owl"]},
    )
    await link(ada, chat, book)
    await tell(server, ada, chat, ["I listen.", "An owl calls."])
    path = await read_path(ada, chat)
    client = make_prompt(said("system", HEAD), *path, line="Well?", placement=places)
    context = await explain(ada, await take(server, ada, chat, client, text="Well?"))
    prompt = sent(model)
    assert shown(context) == prompt
    assert prompt[0] == ("system", HEAD)
    assert prompt[-1] == ("user", "Well?")
    begin = prompt.index(("assistant", path[0].message.text))
    assert prompt[begin : begin + 3] == as_sent(path)
    own = "\n".join(text for _, text in prompt[1:begin])
    added = "\n".join(text for _, text in prompt[begin + 3 : -1])
    assert "Owls are wise." in added
    changing, fixed = ("She limps.", "It rains.", "Be kind."), ("Mara is old.", "Hush.")
    if places == "before":
        assert all(text in own for text in (*fixed, "The sea is deep."))
        assert all(text in added for text in changing)
    else:
        assert begin == 1
        assert "The sea is deep." in added
        assert not any(text in added for text in (*fixed, *changing))
        replaced = {
            each["kind"]
            for each in context["left_out"]
            if each["reason"] == "the client's messages replace it"
        }
        expected = {"system_prompt", "character", "examples", "depth_prompt", "post_history"}
        assert replaced == {*expected, "authors_note"}


async def test_nothing_is_added_without_memory(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    book = await new_book(ada, {"title": "Sea", "content": "Deep.", "constant": True})
    await link(ada, chat, book)
    await tell(server, ada, chat, [FACT, *rain(30)])
    window = (await read_path(ada, chat))[-6:]
    client = make_prompt(
        said("system", HEAD), *window, line=QUESTION, placement="before", uses_memory=False
    )
    context = await explain(ada, await take(server, ada, chat, client, text=QUESTION))
    assert sent(model) == as_sent(client.messages)
    assert context["retrieved"] == []


async def test_lore_is_activated_by_the_lines_that_the_client_sends(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    book = await new_book(
        ada,
        {"title": "Owl", "content": "Owls are wise.", "keys": ["owl"]},
        {"title": "Fox", "content": "Foxes are sly.", "keys": ["fox"]},
        {"title": "Elk", "content": "Elks are tall.", "keys": ["elk"]},
        scan_depth=20,
    )
    await link(ada, chat, book)
    await tell(server, ada, chat, ["A fox runs.", "I see it.", "A bird calls.", "I hear it."])
    *_, third, fourth = await read_path(ada, chat)
    third = said("user", "An owl calls.", third.position)
    client = make_prompt(said("system", "The elk is the king."), third, fourth, line="Who calls?")
    context = await explain(ada, await take(server, ada, chat, client, text="Who calls?"))
    activated = {item["title"] for item in context["retrieved"] if item["kind"] == "lore"}
    assert activated == {"Owl"}
    # The record has the client's text, which differs from the stored one.
    assert shown(context) == sent(model)
    assert context["history"]["changed"] == [third.position]


async def test_the_smallest_window_is_filled_with_the_clients_list_first(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, [FACT, *rain(60)])
    path = await read_path(ada, chat)
    window, head = path[-10:], said("system", HEAD)
    limited: dict[str, Any] = {"max_context": 330, "sampling": Sampling(max_output_tokens=20)}

    client = make_prompt(head, *window, line=QUESTION, **limited)
    context = await explain(ada, await take(server, ada, chat, client, text=QUESTION))
    assert (context["budgets"]["total"], context["budgets"]["reply_reserve"]) == (330, 20)
    assert context["totals"]["prompt"] <= 310
    assert set(as_sent(window)) <= set(sent(model))
    assert last_body(model)["max_tokens"] == 20

    # The whole path alone exceeds the window, so its middle is left out.
    client = make_prompt(head, *path, line="And?", **limited)
    context = await explain(ada, await take(server, ada, chat, client, text="And?"))
    prompt = sent(model)
    assert shown(context) == prompt
    assert context["totals"]["prompt"] <= 310
    assert prompt[:2] == as_sent([head, path[0]])
    assert prompt[-3:] == [*as_sent(path[-2:]), ("user", "And?")]
    assert context["history"]["omitted_first"] == path[1].position
    assert context["retrieved"] == []

    with pytest.raises(ContextOverflowError):
        await take(server, ada, chat, make_prompt(head, line="And? " * 400, **limited), text="And?")


async def test_the_line_is_stored_as_it_was_sent_with_its_images(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    changes = {"findRegex": "/Look/g", "replaceString": "Smell", "placement": [1]}
    await ada.put("/me/regex-scripts", {"scripts": [changes]})
    identity = await identity_of(server, ada)
    before = (await ada.get("/me/usage"))["items"]
    text = "Look, {{char}}: {{random::a::b}}."
    line = ClientMessage(message=PromptMessage("user", f"Ada: {text}", (PICTURE,)))
    greeting = await read_path(ada, chat)
    client = ClientPrompt(messages=[said("system", HEAD), *greeting, line], line=2)
    context = await explain(ada, await take(server, ada, chat, client, text=text))
    assert shown(context)[-1] == ("user", f"Ada: {text}")
    assert context["items"][-1]["images"] == 1
    stored = (await ada.messages(chat))[-2]
    assert stored["text"] == text
    [shown_file] = stored["files"]
    assert (shown_file["name"], shown_file["media_type"]) == ("image.png", "image/png")
    assert shown_file["size"] == len(PICTURE.data)
    query = (
        select(StoredFile)
        .join(MessageFile, MessageFile.file_id == StoredFile.id)
        .where(MessageFile.message_id == UUID(stored["id"]))
    )
    async with server.parts.database.read() as session:
        [file] = await session.scalars(query)
    assert identity.sealer.open_bytes(FILE_DATA, file.id, file.sealed_data) == PICTURE.data
    assert file.digest == files.compute_digest(identity.sealer, PICTURE.data)
    used = {each["quota"]: each["used"] for each in before}
    now = {each["quota"]: each["used"] for each in (await ada.get("/me/usage"))["items"]}
    [name] = [name for name in used if "bytes" in name and "upload" not in name]
    assert now[name] - used[name] > len(PICTURE.data)


async def test_the_clients_sampling_comes_first_and_other_settings_are_reported(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await set_chat(ada, chat, sampling={"temperature": 0.5, "top_p": 0.9})
    path = await read_path(ada, chat)
    client = make_prompt(
        *path,
        line="Well?",
        sampling=Sampling(temperature=1.5, top_a=0.5),
        prefill="{{char}} nods: ",
    )
    model.script(reply('"Yes."'))
    identity = await identity_of(server, ada)
    turns = server.parts.turns
    turn_id = await turns.take(identity, UUID(chat), TurnRequest(text="Well?"), client=client)
    assert turns.list_unsent_settings(turn_id) == ["top_a"]
    context = await explain(ada, await follow(ada.client, str(turn_id)))
    body = last_body(model)
    assert (body["temperature"], body["top_p"], "top_a" in body) == (1.5, 0.9, False)
    assert context["unsent_settings"] == ["top_a"]
    # The beginning is sent as the last message, and belongs to the stored reply.
    assert sent(model)[-1] == ("assistant", "{{char}} nods: ")
    assert (await ada.messages(chat))[-1]["text"] == '{{char}} nods: "Yes."'


async def test_a_reply_is_regenerated_continued_and_the_user_impersonated(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    path = await read_path(ada, chat)
    client = make_prompt(said("system", HEAD), *path, line="Well?")
    first = (await take(server, ada, chat, client, text="Well?"))[0].data["reply_id"]

    model.script(reply("Another."))
    context = await explain(ada, await take(server, ada, chat, client, regenerate_of=UUID(first)))
    assert sent(model) == as_sent(client.messages) == shown(context)
    assert context["items"][-1]["source_id"] == (await ada.messages(chat))[-2]["id"]

    path = await read_path(ada, chat)
    model.script(reply("And more."))
    client = make_prompt(*path, tail=["[Continue your last message.]"])
    context = await explain(ada, await take(server, ada, chat, client, continue_=True))
    assert sent(model) == as_sent(client.messages) == shown(context)
    assert (await ada.messages(chat))[-1]["text"] == "Another. And more."

    # Without an instruction of the client, Talekeeper adds its own.
    path = await read_path(ada, chat)
    model.script(reply("The end."))
    context = await explain(ada, await take(server, ada, chat, make_prompt(*path), continue_=True))
    assert sent(model)[:-1] == as_sent(path)
    assert (sent(model), list_kinds(context)) == (shown(context), ["instruction"])

    path = await read_path(ada, chat)
    model.script(reply(f"{ada.name}: I nod."))
    client = make_prompt(*path, tail=["[Write your next reply from the point of view of Ada.]"])
    events = await take(server, ada, chat, client, impersonate=True)
    assert sent(model) == as_sent(client.messages)
    turn = await ada.get(f"/turns/{events[0].data['turn_id']}")
    assert turn["text"] == "I nod."
    assert len(await ada.messages(chat)) == len(path)


async def test_a_summary_covers_the_messages_outside_the_clients_window(
    server: Running, ada: Account, chat: str, model: OpenAIServer
) -> None:
    await tell(server, ada, chat, rain(30))
    path = await read_path(ada, chat)
    middle = (await ada.messages(chat))[9]["id"]
    await set_chat(ada, chat, summary={"enabled": True})
    await ada.ask(
        "PUT", f"/chats/{chat}/summary", json={"text": "They met.", "through_message_id": middle}
    )
    client = make_prompt(*path[-8:], line="Well?")
    context = await explain(ada, await take(server, ada, chat, client, text="Well?"))
    assert sent(model)[:8] == as_sent(path[-8:])
    assert "They met." in sent(model)[8][1]
    assert list_kinds(context) == ["summary", "user_line"]

    path = await read_path(ada, chat)
    client = make_prompt(*path, line="And?")
    context = await explain(ada, await take(server, ada, chat, client, text="And?"))
    assert sent(model) == as_sent(client.messages)
    assert [each["reason"] for each in context["left_out"] if each["kind"] == "summary"] == [
        "already in history"
    ]


async def test_a_campaign_is_played_with_tools_and_choices(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    game = await new_game(ada)
    client = make_prompt(said("system", HEAD), line="I go on.")
    model.script(called(CHOICE, text="A fork."))
    events = await take(server, ada, game.chat, client, text="I go on.")
    assert events[-1].name == "turn.awaiting_choice"
    prompt = sent(model)
    assert (prompt[0], prompt[-1]) == (("system", HEAD), ("user", "I go on."))
    assert any("Doskvol" in text for _, text in prompt[1:-1])

    model.script(called(FINISH, text="You go left."))
    identity, turn_id = await identity_of(server, ada), events[0].data["turn_id"]
    options = named(events, "turn.awaiting_choice")[0]["options"]
    await server.parts.turns.choose(
        identity, UUID(turn_id), ChoiceRequest(option=options[0]["id"]), client=client
    )
    events = await follow(ada.client, turn_id)
    context = await explain(ada, events)
    assert ("system", HEAD) in sent(model)
    assert context["tools"] == ["ask_player", "finish_turn"]
    assert [kind for kind in list_kinds(context) if kind in {"mood", "state"}] == ["mood", "state"]
    assert shown(context)[-1] == ("user", "I go on.")


@pytest.mark.parametrize("has_names", [True, False])
async def test_names_before_lines_are_no_difference_in_a_group(
    server: Running, ada: Account, model: OpenAIServer, *, has_names: bool
) -> None:
    members = [(await ada.new_character(name=name))["id"] for name in ("Mara", "Bo")]
    chat = (await ada.new_chat(character_ids=members))["id"]
    await tell(server, ada, chat, rain(4))
    path = [
        said(
            each["role"],
            f"{each['author']}: {each['text']}" if has_names else each["text"],
            each["position"],
        )
        for each in await ada.messages(chat)
    ]
    client = make_prompt(*path, line="And now?", tail=["[Write the next reply only as Bo.]"])
    model.script(reply("Bo: I am here."))
    events = await take(server, ada, chat, client, text="And now?", speaker=UUID(members[1]))
    context = await explain(ada, events)
    assert sent(model) == as_sent(client.messages) == shown(context)
    assert context["history"]["changed"] == []
    last = (await ada.messages(chat))[-1]
    assert (last["author"], last["text"]) == ("Bo", "I am here.")
