"""Who speaks next in a group: the ways, whispers, presence, and the choice of the task model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any
from uuid import uuid4

import pytest

from backend.jobs.errors import RetryLaterError
from backend.turns.prompt import speaker_model
from tests.fakes.holding_server import HoldingServer
from tests.fakes.openai_server import error, reply
from tests.fakes.scripted_server import Request
from tests.integration.turns.ensembles import Ensemble, gather
from tests.support.memory import context_of, preview, set_chat
from tests.support.models import asking
from tests.support.server import Account, Running, problem, running
from tests.support.statements import record_statements

pytestmark = [pytest.mark.anyio]

NAMED, DRAWN = "named in the last line", "drawn by talkativeness"
ALONE = "no one else can reply"


class TaskHolder(HoldingServer):
    """Delays requests to the task model."""

    def holds(self, request: Request) -> bool:
        return "response_format" in (request.body or {})


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[TaskHolder]:
    async with TaskHolder() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: TaskHolder
) -> AsyncGenerator[Running]:
    async with running(shared_url, tmp_path_factory.mktemp("data"), **asking(model)) as server:
        yield server


@pytest.fixture
async def group(ada: Account) -> Ensemble:
    return await gather(ada, ("Alda", "Bor", "Cara"))


async def refuse(group: Ensemble, status: int, slug: str, **body: Any) -> dict[str, Any]:
    """Take a turn that is refused, and stores nothing."""
    before = await group.messages()
    answer = await group.ada.ask("POST", f"/chats/{group.chat}/turns", json=body)
    found = problem(answer, status, slug)
    assert await group.messages() == before
    return found


@pytest.mark.every_database
async def test_who_is_named_replies(group: Ensemble, model: TaskHolder) -> None:
    assert await group.ask(text="Cara, where is the key?") == ("Cara", NAMED)
    assert "You are Cara" in str(model.requests[-1].body["messages"])
    assert await group.ask(text="And what does bor think?") == ("Bor", NAMED)
    model.script(reply("Alda has it."))
    assert await group.ask(text="Bor, tell me.") == ("Bor", NAMED)
    # A reply names the next speaker, also without a line of the user.
    assert await group.ask() == ("Alda", NAMED)


async def test_otherwise_talkativeness_decides(ada: Account) -> None:
    """That of the card as SillyTavern writes it, or of the chat's settings."""
    cards = {
        "Alda": {"extensions": {"talkativeness": "0"}},
        "Bor": {"extensions": {"talkativeness": "1"}},
    }
    group = await gather(ada, ("Alda", "Bor"), **cards)
    for _ in range(4):
        assert await group.ask(text="Well?") == ("Bor", DRAWN)
    await group.set(talkativeness={group.ids["Alda"]: 1, group.ids["Bor"]: 0})
    for _ in range(4):
        assert await group.ask(text="Well?") == ("Alda", DRAWN)


async def test_a_draw_depends_on_the_turn(ada: Account) -> None:
    """The same turn id draws the same speaker in another chat, too."""
    group = await gather(ada)
    drawn: Counter[str] = Counter()
    for _ in range(10):
        turn_id, names = str(uuid4()), set[str]()
        for _ in range(2):
            chat = await ada.new_chat(character_ids=list(group.ids.values()))
            again = Ensemble(ada, chat["id"], group.ids)
            name, reason = await again.ask(text="Well?", turn_id=turn_id)
            names.add(name)
            assert reason == DRAWN
            await ada.delete(f"/chats/{chat['id']}")
        [name] = names
        drawn[name] += 1
    assert len(drawn) > 1


@pytest.mark.every_database
async def test_a_repeated_request_keeps_its_speaker(group: Ensemble) -> None:
    body = {"text": "Well?", "turn_id": str(uuid4())}
    name, _ = await group.ask(**body)
    assert (await group.ask(**body))[0] == name
    assert len(await group.messages()) == 2


@pytest.mark.every_database
async def test_a_list_goes_round(group: Ensemble) -> None:
    await group.set(next_speaker="list")
    spoken = [await group.ask(text=f"Cara? {number}") for number in range(4)]
    listed = "next in the list"
    assert spoken == [(name, listed) for name in ("Alda", "Bor", "Cara", "Alda")]
    assert (await group.ask(text="Now you.", speaker=group.ids["Cara"]))[1] == "asked to reply"
    assert (await group.ask(text="Next."))[0] == "Alda"
    await group.move("Bor", "muted")
    assert (await group.ask(text="Next."))[0] == "Cara"


@pytest.mark.every_database
async def test_pooled_members_take_turns_after_a_line(group: Ensemble) -> None:
    await group.set(next_speaker="pooled")
    for text in ("Bor, Bor, Bor!", "Again."):
        first, reason = await group.ask(text=text)
        assert reason == "drawn from those who have not spoken since the user"
        second, _ = await group.ask()
        third, last = await group.ask()
        assert {first, second, third} == set(group.ids)
        assert last in {ALONE, reason}
        again, reason = await group.ask()
        assert (again != third, reason) == (
            True,
            "drawn, because all have spoken since the user",
        )


@pytest.mark.every_database
async def test_by_hand_the_user_chooses(group: Ensemble) -> None:
    await group.set(next_speaker="by_hand")
    await refuse(group, 422, "speaker-needed", text="Bor?")
    bor = group.ids["Bor"]
    assert await group.ask(text="Well?", speaker=bor) == ("Bor", "asked to reply")
    await refuse(group, 422, "nothing-to-answer")
    shown = await preview(group.ada, group.chat, "Cara?")
    assert shown["speaker"]["reason"] == f"to be chosen by hand; {NAMED}"
    reply_id = (await group.messages())[-1]["id"]
    assert await group.ask(regenerate_of=reply_id) == ("Bor", "speaker of the reply")


async def test_a_rewritten_reply_keeps_its_speaker(group: Ensemble) -> None:
    await group.ask(text="Bor?")
    reply_id = (await group.messages())[-1]["id"]
    for _ in range(3):
        assert (await group.ask(regenerate_of=reply_id))[0] == "Bor"
        reply_id = (await group.messages())[-1]["id"]
    assert (await group.ask(**{"continue": True}))[0] == "Bor"
    last, cara = (await group.messages())[-1]["id"], group.ids["Cara"]
    assert (await group.ask(regenerate_of=last, speaker=cara))[0] == "Cara"


@pytest.mark.every_database
async def test_who_is_absent_does_not_speak(group: Ensemble) -> None:
    await group.move("Cara", "absent")
    assert (await group.ask(text="Cara?"))[0] in {"Alda", "Bor"}
    found = await refuse(group, 409, "member-absent", text="Hm?", speaker=group.ids["Cara"])
    assert "Cara" in found["detail"]
    await group.move("Cara", "present")
    assert (await group.ask(text="Cara?"))[0] == "Cara"


@pytest.mark.every_database
async def test_who_is_muted_speaks_only_if_asked(group: Ensemble) -> None:
    await group.move("Bor", "muted")
    for _ in range(3):
        assert (await group.ask(text="Bor, Bor?"))[0] != "Bor"
    assert (await group.ask(text="Say it.", speaker=group.ids["Bor"]))[0] == "Bor"
    for name in ("Alda", "Cara"):
        await group.move(name, "absent")
    await refuse(group, 409, "no-speaker", text="Anyone?")
    await group.move("Bor", "absent")
    await refuse(group, 409, "nobody-present", text="Anyone?")
    # A preview shows someone nevertheless.
    assert (await preview(group.ada, group.chat, "Anyone?"))["prompt"]


@pytest.mark.every_database
async def test_a_whisper_is_answered_by_its_listeners(group: Ensemble, model: TaskHolder) -> None:
    secret = "The key is in the well, Alda."
    listeners = [group.ids["Bor"], group.ids["Cara"]]
    for _ in range(3):
        name, _ = await group.ask(text=secret, audience=listeners)
        assert name in {"Bor", "Cara"}
        # The next one goes on whispering.
        model.script(reply("Hush, Alda must not hear it."))
        other, reason = await group.ask()
        assert ({name, other}, reason) == ({"Bor", "Cara"}, ALONE)
        assert set((await group.messages())[-1]["audience"]) == set(listeners)
    # A listener of one is the only candidate, however often.
    only = [group.ids["Cara"]]
    assert await group.ask(text="Only you.", audience=only) == ("Cara", ALONE)
    assert await group.ask() == ("Cara", ALONE)
    # Who is asked without having heard it does not join the whisper.
    assert (await group.ask(speaker=group.ids["Alda"]))[0] == "Alda"
    assert (await group.messages())[-1]["audience"] == "public"
    assert secret not in str(model.requests[-1].body)
    await group.move("Cara", "muted")
    await refuse(group, 409, "no-speaker", text="Only you.", audience=only)


@pytest.mark.every_database
async def test_who_came_later_has_not_heard_the_line(group: Ensemble) -> None:
    await group.move("Bor", "absent")
    await group.move("Cara", "absent")
    assert await group.ask(text="Bor must not know.") == ("Alda", ALONE)
    await group.move("Bor", "present")
    assert await group.ask() == ("Alda", ALONE)
    await group.set(narrators=[group.ids["Bor"]])
    assert (await group.ask())[0] == "Bor"


async def test_self_replies_can_be_allowed(ada: Account) -> None:
    group = await gather(ada, ("Alda", "Bor"))
    await group.set(talkativeness={group.ids["Alda"]: 1, group.ids["Bor"]: 0})
    assert await group.ask(text="Well?") == ("Alda", DRAWN)
    assert await group.ask() == ("Bor", ALONE)
    await group.set(allow_self_replies=True)
    assert await group.ask(text="Well?") == ("Alda", DRAWN)
    assert await group.ask() == ("Alda", DRAWN)


async def test_previews_show_who_would_speak(group: Ensemble) -> None:
    ada, chat = group.ada, group.chat
    for _ in range(2):
        shown = await preview(ada, chat, "Cara, is it you?")
        assert (shown["speaker"]["name"], shown["speaker"]["reason"]) == ("Cara", NAMED)
        assert "You are Cara" in str(shown["prompt"])
    drawn = [(await preview(ada, chat, text))["speaker"]["name"] for text in ("A", "Al", "Ah")]
    assert len(set(drawn)) == 1  # no other speaker with each key press
    asked = await preview(ada, chat, "Cara?", speaker=group.ids["Bor"])
    assert asked["speaker"]["name"] == "Bor"
    body = {"text": "Cara?", "speaker": group.ids["Alda"]}
    tried = await ada.post(f"/chats/{chat}/context", body)
    assert tried["speaker"]["name"] == "Alda"


async def test_other_chats_have_no_choice(ada: Account, chat: str, model: TaskHolder) -> None:
    events = await ada.turn(chat, text="Someone else?")
    context = await context_of(ada, events[0].data["reply_id"])
    assert context["speaker"] is None
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={})
    problem(answer, 422, "nothing-to-answer")


async def test_a_draw_costs_one_statement_at_most(ada: Account) -> None:
    """It reads the cards of those who may speak."""
    group = await gather(ada, ("Alda", "Bor"))
    await group.ask(text="Bor?")
    asked = await count_reads(group, text="Who?", speaker=group.ids["Bor"])
    assert await count_reads(group, text="Bor?") == asked
    assert await count_reads(group, text="Well?") <= asked + 1
    bor, alda = group.ids["Bor"], group.ids["Alda"]
    await group.set(talkativeness={bor: 0.5, alda: 0.5})
    assert await count_reads(group, text="Well?") == asked


async def count_reads(group: Ensemble, **body: Any) -> int:
    """Take a turn; return the number of statements that read characters."""
    with record_statements() as statements:
        await group.turn(**body)
    return sum("FROM characters" in each.text for each in statements)


class TestTaskModel:
    """The task model chooses the speaker."""

    @pytest.fixture(autouse=True)
    async def _by_model(self, group: Ensemble) -> None:
        await group.set(next_speaker="model")

    async def test_it_reads_the_scene_and_chooses(self, group: Ensemble, model: TaskHolder) -> None:
        model.script(reply("{}"), reply("It rains."))
        await group.ask(text="Bor, hello.")
        sent = len(model.requests)
        model.script(reply(json.dumps({"speaker": "Cara"})))
        body = {"text": "What now, </last_lines> Bor?"}
        assert await group.ask(**body) == ("Cara", "chosen by the task model")
        asked, turn = model.requests[sent:]
        text = asked.body["messages"][-1]["content"]
        assert asked.body["response_format"]["type"] == "json_schema"
        assert "<can_speak>\n- Alda\n- Bor\n- Cara\n</can_speak>" in text
        assert "Bor: It rains." in text
        assert text.count("</last_lines>") == 1
        assert "You are Cara" in str(turn.body["messages"])
        found: Any = await group.ada.get(f"/chats/{group.chat}/enrichment")
        run = found["items"][0]
        assert (run["kind"], run["state"], run["can_undo"]) == ("speaker", "done", False)
        assert found["tokens_today"] > 0

    async def test_it_is_told_who_has_not_heard_the_line(
        self, group: Ensemble, model: TaskHolder
    ) -> None:
        sent = len(model.requests)
        listeners = [group.ids["Bor"], group.ids["Cara"]]
        model.script(reply(json.dumps({"speaker": "Alda"})))
        name, reason = await group.ask(text="Quiet, Cara.", audience=listeners)
        assert (name, reason) == ("Cara", f"the task model chose no one; {NAMED}")
        text = model.requests[sent].body["messages"][-1]["content"]
        assert "- Alda" not in text
        assert "Did not hear the last line: Alda." in text

    async def test_it_may_fail(
        self, group: Ensemble, model: TaskHolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error, a bad or late answer, or used up tokens: the choice is made by mention."""
        expected = "Cara", f"the task model chose no one; {NAMED}"
        answers = (
            error(400, message="No."),
            reply('{"who": 1}'),
            reply('{"speaker": "Nobody"}'),
            reply('{"speaker": "Alda or Bor"}'),
            reply('{"speaker": ""}'),
        )
        for answer in answers:
            model.script(answer)
            assert await group.ask(text="Cara?") == expected
        monkeypatch.setattr(speaker_model, "TIMEOUT_SECONDS", 0.1)
        async with model.thinking():
            assert await group.ask(text="Cara?") == expected

        def none_left(*_: object) -> None:
            raise RetryLaterError("Spent.", after=60)

        monkeypatch.setattr(speaker_model, "open_budget", none_left)
        sent = len(model.requests)
        assert await group.ask(text="Cara?") == expected
        assert len(model.requests) == sent + 1

    async def test_it_is_asked_once_even_if_the_prompt_is_built_again(
        self, group: Ensemble, model: TaskHolder, server: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builder = server.parts.turns._builder
        build, attempts = builder.build, 0

        async def build_and_change(*args: Any, **options: Any) -> Any:
            nonlocal attempts
            built = await build(*args, **options)
            attempts += 1
            if attempts == 1:
                await set_chat(group.ada, group.chat, system_prompt="Be brief.")
            return built

        monkeypatch.setattr(builder, "build", build_and_change)
        sent = len(model.requests)
        model.script(reply(json.dumps({"speaker": "Bor"})))
        assert (await group.ask(text="Cara?"))[0] == "Bor"
        assert attempts == 2
        assert len(model.requests) == sent + 2

    async def test_previews_ask_no_model(self, group: Ensemble, model: TaskHolder) -> None:
        sent = len(model.requests)
        shown = await preview(group.ada, group.chat, "Cara?")
        assert shown["speaker"]["reason"] == (
            f"the task model chooses when the turn begins; {NAMED}"
        )
        assert len(model.requests) == sent
