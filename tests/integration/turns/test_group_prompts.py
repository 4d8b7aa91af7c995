"""The prompts of groups: joined and swapped cards, public parts, and what all speakers share."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer, reply
from tests.integration.turns.seeding import seed
from tests.support.memory import API, context_of, link, new_book, preview, set_chat, take_turn
from tests.support.models import asking
from tests.support.server import Account, Running, ok, problem, running
from tests.support.shared import vendor as model

__all__ = ["model"]

pytestmark = pytest.mark.anyio

Cast = dict[str, str]
"""The ids of characters by name."""

ALDA: dict[str, Any] = {
    "name": "Alda",
    "first_mes": "Alda waits.",
    "description": (
        "{{char}} keeps the light.\nAppearance: tall, grey eyes\nSecret: {{char}} is ALDA1."
    ),
    "personality": "dry, and ALDA2",
    "scenario": "{{char}} hides ALDA3.",
    "mes_example": "<START>\n{{user}}: Well?\n{{char}}: ALDA4.",
    "system_prompt": "ALDA5. {{original}}",
    "post_history_instructions": "ALDA6.",
    "creator_notes": "ALDA7",
    "alternate_greetings": ["ALDA8"],
    "extensions": {
        "depth_prompt": {"prompt": "ALDA9.", "depth": 0, "role": "system"},
        "talekeeper": {
            "public": "{{char}} is a healer.",
            "authors_note": {"text": "ALDA10.", "position": "after_prompt"},
        },
    },
}
BOR: dict[str, Any] = {
    "name": "Bor",
    "first_mes": "BOR0",
    "description": 'Hair("red" + "long") Secret("BOR1")',
    "personality": "BOR2",
    "scenario": "BOR3",
    "system_prompt": "BOR5",
    "post_history_instructions": "BOR6",
}
CYN: dict[str, Any] = {"name": "Cyn", "first_mes": "CYN0", "description": "CYN1"}
CARDS = {"Alda": ALDA, "Bor": BOR, "Cyn": CYN}


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    """A server without an index, so that entries are only found by their keys."""
    folder = tmp_path_factory.mktemp("data")
    async with running(
        shared_url, folder, embedder="none", job_workers=0, **asking(model)
    ) as server:
        yield server


@pytest.fixture
async def cast(ada: Account) -> Cast:
    return {name: (await ada.new_character(**card))["id"] for name, card in CARDS.items()}


@pytest.fixture
async def group(ada: Account, cast: Cast) -> str:
    """A chat of Alda and Bor, which begins with Alda's greeting."""
    return await open_group(ada, cast["Alda"], cast["Bor"])


async def open_group(ada: Account, *character_ids: str) -> str:
    return str((await ada.new_chat(character_ids=list(character_ids)))["id"])


async def speak(ada: Account, chat: str, speaker: str, **body: Any) -> dict[str, Any]:
    """Let a character reply, and return the context of the reply."""
    reply_id = await take_turn(ada, chat, speaker=speaker, **body)
    return await context_of(ada, reply_id, diff="previous")


async def set_presence(ada: Account, chat: str, character: str, presence: str) -> None:
    await ada.patch(f"/chats/{chat}/members/{character}", {"presence": presence})


def read_messages(context: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["text"]) for message in context["prompt"]]


def join_texts(context: dict[str, Any]) -> str:
    return "\n".join(message["text"] for message in context["prompt"])


def list_items(context: dict[str, Any], place: str) -> list[tuple[str, str]]:
    return [(each["kind"], each["title"]) for each in context["items"] if each["place"] == place]


def count_secrets(name: str, text: str) -> int:
    return sum(f"{name.upper()}{number}" in text for number in range(1, 11))


async def test_joined_cards_in_full(ada: Account, group: str, cast: Cast) -> None:
    persona = await ada.post("/personas", {"name": "Eve", "description": "Knows {{char}}."}, 201)
    await ada.patch(f"/chats/{group}", {"persona_id": persona["id"]})
    await set_chat(ada, group, scenario="{{char}} and {{user}} share a boat.", authors_note=None)
    context = await speak(ada, group, cast["Alda"], text="Well?")
    (_, head), *rest = read_messages(context)
    instructions, persona_text, alda, bor, scenario = head.split("\n\n<")
    assert instructions.startswith(
        "This is an ongoing roleplay with Eve. The characters are Alda, Bor."
    )
    assert persona_text == 'persona name="Eve">\nKnows Alda, Bor.\n</persona>'
    assert alda == (
        'person name="Alda">\nAppearance: tall, grey eyes\nAlda is a healer.\n</person>'
    )
    assert bor == 'person name="Bor">\nHair: red, long\n</person>'
    assert scenario == "scenario>\nAlda, Bor and Eve share a boat.\n</scenario>"
    assert rest == [
        ("assistant", "Alda: Alda waits."),
        (
            "system",
            (
                "You are Alda. Write Alda's next reply, and Alda's alone. Also present: Bor.\n\n"
                "ALDA5. \n\n"
                "ALDA10.\n\n"
                '<character name="Alda">\nAlda keeps the light.\nAppearance: tall, grey eyes\n'
                "Secret: Alda is ALDA1.\n\nPersonality: dry, and ALDA2\n</character>\n\n"
                "<example_dialogue>\nHow Alda talks. These exchanges show style only and are not "
                "part of the story.\n\nEve: Well?\nAlda: ALDA4.\n</example_dialogue>"
            ),
        ),
        ("user", "Eve: Well?"),
        ("system", "ALDA9."),
        ("system", "ALDA6."),
    ]


async def test_the_inspector_names_public_parts_and_the_speaker_s_part(
    ada: Account, group: str, cast: Cast
) -> None:
    context = await speak(ada, group, cast["Alda"], text="Well?")
    assert list_items(context, "head") == [
        ("system_prompt", "System prompt"),
        ("public_part", "Alda"),
        ("public_part", "Bor"),
    ]
    assert list_items(context, "added") == [
        ("speaker", "Alda"),
        ("system_prompt", "System prompt of Alda"),
        ("authors_note", "Author's note"),
        ("character", "Alda"),
        ("examples", "Example dialogue"),
    ]
    public = [item for item in context["items"] if item["kind"] == "public_part"]
    assert [item["source_id"] for item in public] == [cast["Alda"], cast["Bor"]]
    assert {item["reason"] for item in public} == {"public part of the card"}


async def test_swapped_cards_in_full(ada: Account, group: str, cast: Cast) -> None:
    await set_chat(ada, group, group={"cards": "swapped"})
    context = await speak(ada, group, cast["Bor"], text="Well?")
    assert read_messages(context) == [
        (
            "system",
            (
                'BOR5\n\n<character name="Bor">\nHair("red" + "long") Secret("BOR1")\n\n'
                "Personality: BOR2\n\nScenario: BOR3\n</character>"
            ),
        ),
        ("assistant", "Alda: Alda waits."),
        ("user", f"{ada.name}: Well?"),
        ("system", "BOR6"),
    ]


@pytest.mark.parametrize("cards", ["joined", "swapped"])
async def test_the_secrets_of_a_card_are_its_speaker_s_alone(
    ada: Account, group: str, cast: Cast, cards: str
) -> None:
    await set_chat(ada, group, group={"cards": cards})
    await ada.patch(f"/chats/{group}", {"character_ids": list(cast.values())})
    for name, card in CARDS.items():
        text = join_texts(await speak(ada, group, cast[name], text="Well?"))
        own = count_secrets(name, text)
        assert own == sum(
            f"{name.upper()}{n}" in str(card) for n in range(1, 11) if n not in {7, 8}
        )
        others = [each for each in CARDS if each != name]
        assert [count_secrets(each, text) for each in others] == [0, 0]


async def test_the_user_s_line_is_written_from_what_is_public(
    ada: Account, model: OpenAIServer, group: str, cast: Cast
) -> None:
    await ada.patch(f"/chats/{group}", {"character_ids": list(cast.values())})
    await set_presence(ada, group, cast["Bor"], "absent")
    await set_chat(ada, group, post_history_instructions="{{description}} {{char}}.")
    await ada.turn(group, impersonate=True)
    prompt = "\n".join(each["content"] for each in model.requests[-1].body["messages"])
    assert f"Write {ada.name}'s next message to Alda, Cyn" in prompt
    assert "You are" not in prompt
    assert model.requests[-1].body["messages"][-1]["content"].strip() == "Alda, Bor, Cyn."
    assert "tall, grey eyes" in prompt
    assert [count_secrets(name, prompt) for name in CARDS] == [0, 0, 0]


async def converse(ada: Account, chat: str, cast: Cast) -> list[dict[str, Any]]:
    """Let three lines be answered by one after the other, and return the contexts."""
    first = await speak(ada, chat, cast["Alda"], text="The lamp is out.")
    return [first, *[await speak(ada, chat, cast[name]) for name in ("Bor", "Alda", "Bor")]]


def check_shared_prefix(contexts: list[dict[str, Any]]) -> None:
    """Check that each prompt begins with the head and the history of the one before it."""
    for before, after in pairwise(contexts):
        shared = after["difference"]["shared_prefix"]
        assert shared == 1 + before["history"]["count"]
        assert before["prompt"][:shared] == after["prompt"][:shared]


@pytest.fixture
async def quiet(ada: Account, cast: Cast) -> str:
    """A group without a depth prompt, which would be placed within the history."""
    await ada.patch(f"/characters/{cast['Alda']}", {"extensions": {"depth_prompt": None}})
    return await open_group(ada, cast["Alda"], cast["Bor"])


async def test_two_speakers_share_all_up_to_the_end_of_the_history(
    ada: Account, quiet: str, cast: Cast
) -> None:
    check_shared_prefix(await converse(ada, quiet, cast))


async def test_swapped_cards_share_nothing(ada: Account, quiet: str, cast: Cast) -> None:
    await set_chat(ada, quiet, group={"cards": "swapped"})
    contexts = await converse(ada, quiet, cast)
    assert [each["difference"]["shared_prefix"] for each in contexts[1:]] == [0, 0, 0]


@pytest.mark.parametrize("placement", ["after_history", "as_written"])
@pytest.mark.parametrize("position", ["before_prompt", "after_prompt"])
async def test_lore_and_notes_keep_the_shared_prefix(
    ada: Account, quiet: str, cast: Cast, placement: str, position: str
) -> None:
    constant = {"constant": True, "keys": []}
    shared = await new_book(
        ada,
        {**constant, "title": "plain", "content": "The sea is grey."},
        {**constant, "title": "named", "content": "{{char}} knows the sea."},
        {
            **constant,
            "title": "filtered",
            "content": "Bor rows.",
            "character_filter": {"names": ["Bor"]},
        },
        {"title": "keyed", "content": "Lamps need oil.", "keys": ["lamp"]},
        {"title": "note", "content": "Wind.", "keys": ["lamp"], "position": "note_top"},
    )
    await link(ada, quiet, shared)
    for name in ("Alda", "Bor"):
        entry = {**constant, "title": name, "content": f"{name} has a boat."}
        examples = {
            **constant,
            "title": "talk",
            "content": f"{name}: Ho.",
            "position": "examples_top",
        }
        book = await new_book(ada, entry, examples)
        await ada.put(f"/characters/{cast[name]}/lorebooks/{book}", status=204)
    note = {"text": "{{char}} are wet.", "position": position}
    await set_chat(ada, quiet, lore_placement=placement, authors_note=note)
    contexts = await converse(ada, quiet, cast)
    check_shared_prefix(contexts)
    for context, name, other in zip(
        contexts, ("Alda", "Bor") * 2, ("Bor", "Alda") * 2, strict=True
    ):
        head, text = context["prompt"][0]["text"], join_texts(context)
        assert "The sea is grey." in head
        assert "Alda, Bor are wet." in head
        assert f"{name} knows the sea." in text
        assert f"{name} has a boat." in text
        assert f"{name}: Ho." in text
        assert f"{other} has a boat." not in text
        assert ("Bor rows." in text) == (name == "Bor")
    assert "Lamps need oil." in join_texts(contexts[0])
    assert "Wind." in join_texts(contexts[0])


async def test_a_full_window_begins_with_the_same_message_for_long_and_short_cards(
    server: Running, ada: Account, quiet: str, cast: Cast
) -> None:
    await ada.patch(f"/characters/{cast['Bor']}", {"personality": "He counts waves. " * 250})
    await seed(server, ada, quiet, [f"Wave {n} is wet and cold. " * 8 for n in range(120)])
    budgets = {"total": 4_000, "reply_reserve": 500, "history": 3_400, "retrieval": 100}
    await set_chat(ada, quiet, budgets=budgets)
    contexts = await converse(ada, quiet, cast)
    firsts = {context["history"]["first"] for context in contexts}
    assert len(firsts) == 1
    assert firsts.pop() > 10
    check_shared_prefix(contexts)


@pytest.mark.parametrize("viewpoint", [None, "gm"])
async def test_thoughts_and_marks_keep_the_shared_prefix(
    ada: Account, model: OpenAIServer, quiet: str, cast: Cast, viewpoint: str | None
) -> None:
    await set_presence(ada, quiet, cast["Cyn"], "present")
    await set_chat(ada, quiet, reasoning_sent=5, viewpoint=viewpoint)
    model.script(reply("<think>Alda thinks.</think>", "Aye."))
    known = [cast["Alda"], cast["Bor"]]
    await ada.turn(quiet, text="Psst.", speaker=cast["Alda"], audience=known)
    contexts = await converse(ada, quiet, cast)
    check_shared_prefix(contexts)
    assert f"(known to Alda and Bor only) {ada.name}: Psst." in join_texts(contexts[1])
    assert ("Alda thinks." in join_texts(contexts[1])) == (viewpoint == "gm")


async def test_a_campaign_keeps_the_shared_prefix(ada: Account, quiet: str, cast: Cast) -> None:
    campaign = await ada.post("/campaigns", {"name": "The coast"}, 201)
    await ada.patch(f"/chats/{quiet}", {"campaign_id": campaign["id"]})
    contexts = await converse(ada, quiet, cast)
    assert "CAMPAIGN: The coast" in contexts[0]["prompt"][0]["text"]
    heads = {each["prompt"][0]["text"] for each in contexts}
    assert len(heads) == 1


async def test_a_scenario_of_all_cards_is_shared(ada: Account, cast: Cast) -> None:
    for name in ("Alda", "Bor"):
        await ada.patch(f"/characters/{cast[name]}", {"scenario": "The inn of {{user}}."})
    chat = await open_group(ada, cast["Alda"], cast["Bor"])
    context = await speak(ada, chat, cast["Bor"], text="Well?")
    assert f"<scenario>\nThe inn of {ada.name}.\n</scenario>" in context["prompt"][0]["text"]
    assert join_texts(context).count("The inn") == 1
    await ada.patch(f"/characters/{cast['Alda']}", {"scenario": ""})
    context = await speak(ada, chat, cast["Bor"])
    assert "The inn" not in context["prompt"][0]["text"]
    assert join_texts(context).count("The inn") == 1
    assert "The inn" not in join_texts(await speak(ada, chat, cast["Alda"]))


async def test_a_changed_card_changes_its_public_part(ada: Account, group: str, cast: Cast) -> None:
    await speak(ada, group, cast["Alda"], text="Well?")
    await ada.patch(f"/characters/{cast['Bor']}", {"description": "Looks: shaven\nBOR1"})
    text = join_texts(await speak(ada, group, cast["Alda"], text="And now?"))
    assert "Looks: shaven" in text
    assert "Hair" not in text
    assert "BOR1" not in text


async def test_who_is_there_is_said_after_the_history(ada: Account, group: str, cast: Cast) -> None:
    await ada.patch(f"/chats/{group}/members/{cast['Cyn']}", {"presence": "present"})
    await set_presence(ada, group, cast["Bor"], "muted")
    context = await speak(ada, group, cast["Alda"], text="Well?")
    assert "Also present: Bor, Cyn." in join_texts(context)
    heads = {context["prompt"][0]["text"]}
    await set_presence(ada, group, cast["Bor"], "absent")
    context = await speak(ada, group, cast["Alda"], text="Well?")
    assert "Also present: Cyn. Not present: Bor." in join_texts(context)
    heads.add(context["prompt"][0]["text"])
    assert len(heads) == 1
    await set_chat(ada, group, group={"cards": "swapped"}, system_prompt="{{original}}")
    await ada.patch(f"/characters/{cast['Alda']}", {"system_prompt": ""})
    context = await speak(ada, group, cast["Alda"], text="Well?")
    assert "Also present: Cyn. Write" in context["prompt"][0]["text"]


async def test_a_character_that_joins_on_another_branch_is_not_named(
    ada: Account, group: str, cast: Cast
) -> None:
    before = (await ada.messages(group))[-1]
    await set_presence(ada, group, cast["Cyn"], "present")
    assert '<person name="Cyn">' in join_texts(await speak(ada, group, cast["Bor"], text="Well?"))
    await ada.post(f"/messages/{before['id']}/activate", {"follow": False})
    context = await speak(ada, group, cast["Bor"], text="Well?")
    assert "Cyn" not in join_texts(context)
    assert "The characters are Alda, Bor." in context["prompt"][0]["text"]


def make_block(marker: str | None = None, **fields: Any) -> dict[str, Any]:
    ids = {
        "character": "charDescription",
        "personality": "charPersonality",
        "scenario": "scenario",
        "history": "chatHistory",
        "system_prompt": "main",
        "examples": "dialogueExamples",
    }
    return {"marker": marker, "id": ids[marker], **fields} if marker else fields


async def choose_preset(ada: Account, chat: str, *blocks: dict[str, Any], **fields: Any) -> None:
    body = {"name": "Mine", "blocks": blocks, **fields}
    preset = await ada.post("/presets", body, 201)
    await set_chat(ada, chat, preset_id=preset["id"])


async def test_blocks_before_the_history_are_split(ada: Account, quiet: str, cast: Cast) -> None:
    await choose_preset(
        ada,
        quiet,
        make_block(id="one", name="One", content="For {{char}}: {{group}}."),
        make_block("personality"),
        make_block(id="two", name="Two", content="She is {{personality}}."),
        make_block("character", role="user"),
        make_block("system_prompt", content="Play {{char}}.", forbid_overrides=True),
        make_block("history"),
        make_block(id="three", name="Three", content="Now {{char}}."),
    )
    contexts = await converse(ada, quiet, cast)
    check_two_heads(contexts)
    messages = read_messages(contexts[0])
    assert messages[0] == ("system", "For Alda, Bor: Alda, Bor.")
    assert messages[1][0] == "user"
    assert [text.split(">")[0] for text in messages[1][1].split("\n\n")] == [
        '<person name="Alda"',
        '<person name="Bor"',
    ]
    assert messages[2] == ("system", "Play Alda, Bor.")
    line = next(at for at, each in enumerate(messages) if each[1].endswith("The lamp is out."))
    own, card, note = messages[line - 3 : line]
    assert own[0] == "system"
    assert own[1].split("\n\n") == [
        "You are Alda. Write Alda's next reply, and Alda's alone. Also present: Bor.",
        '<character name="Alda">',
        "Personality: dry, and ALDA2\n</character>",
        "She is dry, and ALDA2.",
    ]
    assert card[0] == "user"
    assert "Alda keeps the light." in card[1]
    assert note == ("system", "ALDA10.")
    assert messages[-1] == ("system", "Now Alda.")
    assert "ALDA5" not in join_texts(contexts[0])


def check_two_heads(contexts: list[dict[str, Any]]) -> None:
    """Check the shared prefix of prompts with more than one message before the history."""
    for before, after in pairwise(contexts):
        texts = [message["text"] for message in before["prompt"]]
        head = texts.index("Alda: Alda waits.")
        assert after["difference"]["shared_prefix"] == head + before["history"]["count"]


async def test_a_card_block_after_the_history_has_the_others_public_parts(
    ada: Account, quiet: str, cast: Cast
) -> None:
    await choose_preset(
        ada,
        quiet,
        make_block("system_prompt", content="Play."),
        make_block("history"),
        make_block("character"),
    )
    contexts = await converse(ada, quiet, cast)
    check_shared_prefix(contexts)
    last = contexts[0]["prompt"][-1]["text"]
    assert '<person name="Bor">' in last
    assert '<person name="Alda">' not in last
    assert "ALDA1." in last
    assert contexts[0]["prompt"][0]["text"] == "Play."


async def test_macros_name_the_group_without_muted_and_absent_members(
    ada: Account, group: str, cast: Cast
) -> None:
    await ada.patch(f"/characters/{cast['Alda']}", {"nickname": "Al"})
    await set_presence(ada, group, cast["Cyn"], "present")
    text = "{{char}}|{{group}}|{{charIfNotGroup}}|{{groupNotMuted}}|{{notChar}}"
    await set_chat(ada, group, post_history_instructions=text, system_prompt=text)
    user = ada.name

    async def expand_both(name: str) -> tuple[str, str]:
        context = await speak(ada, group, cast[name], text="Well?")
        head = context["prompt"][0]["text"].split("\n")[0]
        return head, context["prompt"][-1]["text"]

    await ada.patch(f"/characters/{cast['Alda']}", {"post_history_instructions": ""})
    everyone = "Al, Bor, Cyn"
    assert await expand_both("Alda") == (
        f"{everyone}|{everyone}|{everyone}|{everyone}|{user}",
        f"Al|{everyone}|{everyone}|{everyone}|Bor, Cyn, {user}",
    )
    await set_presence(ada, group, cast["Bor"], "muted")
    await set_presence(ada, group, cast["Cyn"], "absent")
    assert await expand_both("Alda") == (
        f"{everyone}|{everyone}|{everyone}|Al|{user}",
        f"Al|{everyone}|{everyone}|Al|{user}",
    )


async def test_a_line_of_the_user_names_the_group(ada: Account, group: str, cast: Cast) -> None:
    await set_presence(ada, group, cast["Bor"], "muted")
    await ada.turn(group, text="{{group}}; {{groupNotMuted}}; {{notChar}}", speaker=cast["Alda"])
    line = (await ada.messages(group))[-2]
    assert line["text"] == f"Alda, Bor; Alda; {ada.name}"
    edited = await ada.patch(f"/messages/{line['id']}", {"text": "{{group}}: {{groupNotMuted}}"})
    assert edited["text"] == "Alda, Bor: Alda"


async def test_greetings_of_a_group_come_first(ada: Account, cast: Cast) -> None:
    texts = ["{{char}} greets {{group}}.", "", "Again, {{groupNotMuted}}!"]
    await ada.patch(f"/characters/{cast['Alda']}", {"group_only_greetings": texts})
    await ada.patch(f"/characters/{cast['Bor']}", {"group_only_greetings": ["Bor greets."]})
    chat = await open_group(ada, cast["Alda"], cast["Bor"])
    (greeting,) = await ada.messages(chat)
    assert greeting["text"] == "Alda greets Alda, Bor."
    swipes = (await ada.get(f"/messages/{greeting['id']}/siblings"))["items"]
    assert [each["text"] for each in swipes[1:]] == ["Again, Alda, Bor!", "Alda waits.", "ALDA8"]
    await set_presence(ada, chat, cast["Cyn"], "present")
    assert [each["text"] for each in await ada.messages(chat)][1:] == ["Cyn joins."]


async def test_lore_of_a_greeting_counts_the_card_s_greetings(ada: Account, cast: Cast) -> None:
    await ada.patch(f"/characters/{cast['Alda']}", {"group_only_greetings": ["All of you!"]})
    chat = await open_group(ada, cast["Alda"], cast["Bor"])
    numbers = [
        {"title": str(n), "content": f"@@is_greeting {n}\nLore {n}.", "constant": True}
        for n in range(3)
    ]
    await link(ada, chat, await new_book(ada, *numbers))
    (greeting,) = await ada.messages(chat)
    swipes = (await ada.get(f"/messages/{greeting['id']}/siblings"))["items"]
    found: dict[str, list[int]] = {}
    for swipe in swipes:
        await ada.post(f"/messages/{swipe['id']}/activate")
        text = join_texts(await preview(ada, chat, text="Well?"))
        found[swipe["text"]] = [n for n in range(3) if f"Lore {n}." in text]
    assert found == {"All of you!": [2], "Alda waits.": [0], "ALDA8": [1]}


async def test_the_public_text_is_a_field_of_the_card(ada: Account, cast: Cast) -> None:
    path = f"/characters/{cast['Bor']}"
    extensions = {"talekeeper": {"public": "A smith."}, "fav": True}
    assert (await ada.patch(path, {"extensions": extensions}))["extensions"] == extensions
    chat = await open_group(ada, cast["Alda"], cast["Bor"])
    text = join_texts(await preview(ada, chat))
    assert '<person name="Bor">\nHair: red, long\nA smith.\n</person>' in text
    answer = await ada.client.get(f"{API}{path}/export", params={"format": "json"})
    exported = json.loads(answer.content)
    assert exported["data"]["extensions"]["talekeeper"] == {"public": "A smith."}
    files = {"file": ("bor.json", answer.content)}
    copy = ok(await ada.client.post(f"{API}/characters/import", files=files), 201)["character"]
    assert copy["extensions"]["talekeeper"] == {"public": "A smith."}
    for public in (3, None, ["x"]):
        await ada.patch(path, {"extensions": {"talekeeper": {"public": public}}})
        text = join_texts(await preview(ada, chat))
        assert '<person name="Bor">\nHair: red, long\n</person>' in text
    body = {"extensions": {"talekeeper": {"public": "x" * 200_001}}}
    problem(await ada.client.patch(f"{API}{path}", json=body), 422, "card-limit")


NAMES = ("Al", "Alda", "Alda Voss", "Bor")


@pytest.mark.parametrize("cards", ["joined", "swapped"])
async def test_labels_of_absent_and_late_members_end_a_reply(
    ada: Account, model: OpenAIServer, cards: str
) -> None:
    ids = {name: (await ada.new_character(name=name))["id"] for name in NAMES}
    chat = await open_group(ada, *list(ids.values())[:3])
    await set_chat(ada, chat, group={"cards": cards})
    await set_presence(ada, chat, ids["Bor"], "present")
    await set_presence(ada, chat, ids["Alda Voss"], "absent")
    for speaker in ("Al", "Alda", "Bor"):
        for other in (*NAMES, ada.name):
            if other == speaker:
                continue
            text = f"{speaker}: Good day.\n\n{other}: No."
            model.script(reply(*text))
            await ada.turn(chat, text="Well?", speaker=ids[speaker])
            assert (await ada.messages(chat))[-1]["text"] == "Good day."
    await set_chat(ada, chat, keep_other_speakers=True)
    model.script(reply("Al: Good day.\nAlda: No."))
    await ada.turn(chat, text="Well?", speaker=ids["Al"])
    assert (await ada.messages(chat))[-1]["text"] == "Good day.\nAlda: No."


@pytest.mark.parametrize("cards", ["joined", "swapped"])
async def test_only_the_speaker_s_books_fire(ada: Account, cast: Cast, cards: str) -> None:
    book = {"name": "Own", "entries": [{"keys": ["lamp"], "content": "Card lore of Alda."}]}
    await ada.patch(f"/characters/{cast['Alda']}", {"character_book": book})
    for name in ("Bor", "Cyn"):
        entry = {"title": name, "keys": ["lamp"], "content": f"Lore of {name}."}
        linked = await new_book(ada, entry)
        await ada.put(f"/characters/{cast[name]}/lorebooks/{linked}", status=204)
    chat = await open_group(ada, cast["Alda"], cast["Bor"])
    await set_chat(ada, chat, group={"cards": cards})
    await set_presence(ada, chat, cast["Cyn"], "present")

    async def check_lore(chat: str) -> None:
        for name in CARDS:
            text = join_texts(await speak(ada, chat, cast[name], text="The lamp?"))
            found = [each for each in CARDS if f"ore of {each}." in text]
            assert found == [name]

    await check_lore(chat)
    leaf = (await ada.messages(chat))[-1]
    fork = await ada.post(f"/chats/{chat}/fork", {"message_id": leaf["id"]}, 201)
    await check_lore(fork["id"])


async def test_a_whisper_is_marked_with_the_names_of_members(
    ada: Account, group: str, cast: Cast
) -> None:
    await ada.turn(group, text="Psst.", speaker=cast["Alda"], audience=[cast["Alda"]])
    context = await speak(ada, group, cast["Alda"], text="Well?")
    assert f"(known to Alda only) {ada.name}: Psst." in join_texts(context)
    assert "Psst" not in join_texts(await speak(ada, group, cast["Bor"], text="And you?"))
