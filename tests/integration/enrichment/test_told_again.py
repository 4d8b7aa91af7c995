"""Events of a group: who knows them, and how others get to know them when they are told again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tests.integration.enrichment.test_rebuild import rebuilder, wait_for_end
from tests.support.server import Account, Running, ok
from tests.support.studying import (
    FINISH,
    Call,
    Study,
    Vendor,
    entry,
    event,
    model,
    server,
    studying_on,
)

__all__ = ["model", "server"]

pytestmark = pytest.mark.anyio

SECRET = "The cracked lens lies under the third stair."
REORDERED = "Under the third stair lies the cracked lens."


@dataclass
class Ensemble:
    """A chat of Alda, Bor and Cid that has opted in. Cid is away from the beginning on."""

    study: Study
    people: dict[str, str]

    @property
    def account(self) -> Account:
        return self.study.account

    async def send(self, name: str, presence: str) -> None:
        path = f"/chats/{self.study.chat_id}/members/{self.people[name]}"
        ok(await self.account.ask("PATCH", path, json={"presence": presence}))

    async def hear(self, *lines: str, calls: list[Call] | None = None) -> list[str]:
        """Add lines that end with a reply, let the agent read them, and return their ids.

        `calls` are those of the agent. Without any, it finds nothing.
        """
        model = self.study.model
        made = await self.study.tell(*lines)
        if calls is None:
            model.script(model.decides(significant=False))
        else:
            model.script(model.decides(), model.calls(*calls, FINISH))
        await self.study.read()
        return [str(each.id) for each in made]

    async def tell_secret(self) -> str:
        """Tell the secret to Alda while Bor is away, and let him return. Return the message."""
        await self.send("Bor", "absent")
        *_, told = await self.hear("Mara whispers to Alda.", calls=[event(SECRET)])
        await self.send("Bor", "present")
        return told

    async def tell_bor(self, summary: str = SECRET, *, same: list[int] | None = None) -> str:
        """Tell it again while Bor is there. Return the message.

        `same` is the model's answer to the question if the texts say the same.
        """
        model = self.study.model
        lines = await self.study.tell("They talk.", "Tell him.", "Alda tells Bor all.")
        model.script(model.decides(), model.calls(event(summary), FINISH))
        if same is not None:
            model.script(model.says(json.dumps({"same": same})))
        await self.study.read()
        return str(lines[-1].id)

    async def events(self, **query: Any) -> list[dict[str, Any]]:
        path = f"/chronicles/{self.study.chronicle_id}/events"
        found: list[dict[str, Any]] = (await self.account.get(path, **query))["items"]
        return found

    async def knowledge(self) -> dict[str, tuple[set[str], set[str]]]:
        """Return the events: those who may know them, and those who do."""
        names = {value: key for key, value in self.people.items()}
        return {
            each["summary"]: (
                {each["audience"]}
                if isinstance(each["audience"], str)
                else {names[key] for key in each["audience"]},
                {names[key] for key in each["known_to"]},
            )
            for each in await self.events()
        }

    async def remembers(self, name: str) -> list[str]:
        """Return the memories of a member."""
        page = await self.account.get(
            f"/characters/{self.people[name]}/memories", chat_id=self.study.chat_id
        )
        return [each["event"]["summary"] for each in page["items"]]

    async def undo_last(self, *, back: int = 0) -> dict[str, Any]:
        """Undo the latest run, or one before it."""
        runs = await self.study.runs()
        return await self.account.post(f"/enrichment/runs/{runs[-1 - back][0].id}/undo")


@pytest.fixture
async def ensemble(server: Running, model: Vendor) -> AsyncGenerator[Ensemble]:
    async with studying_on(server, model, opted_in=False) as study:
        people = {
            name: str((await study.account.new_character(name=name))["id"])
            for name in ("Alda", "Bor", "Cid")
        }
        chat = await study.account.new_chat(character_ids=list(people.values()))
        study.chat_id = chat["id"]
        answer = await study.settings(chronicle_enabled=True)
        study.chronicle_id = UUID(answer["chronicle_id"])
        found = Ensemble(study, people)
        await found.send("Cid", "absent")
        yield found


async def test_a_secret_is_known_to_those_who_were_there(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    assert await ensemble.knowledge() == {SECRET: ({"Alda"}, {"Alda"})}
    assert await ensemble.remembers("Alda") == [SECRET]
    assert await ensemble.remembers("Bor") == await ensemble.remembers("Cid") == []


async def test_lines_are_read_apart_where_presence_changes(ensemble: Ensemble) -> None:
    model = ensemble.study.model
    await ensemble.study.tell("We meet.", "All listen.")
    await ensemble.send("Bor", "absent")
    await ensemble.study.tell("Only Alda hears of the lens.")
    model.script(*(model.decides(significant=False) for _ in range(2)))
    await ensemble.study.read()
    runs = await ensemble.study.runs()
    assert [(run.from_position, run.to_position) for run, _ in runs] == [(2, 3), (5, 5)]


async def test_earlier_lines_are_shown_if_all_listeners_heard_them(ensemble: Ensemble) -> None:
    model = ensemble.study.model
    await ensemble.tell_secret()
    model.server.forget()
    await ensemble.hear("They meet again.")
    (request,) = model.server.requests
    prompt = model.prompt_of(request)
    assert "They meet again." in prompt
    assert "Mara whispers to Alda." not in prompt
    await ensemble.send("Bor", "absent")
    model.server.forget()
    await ensemble.hear("Alda is alone.")
    assert "(known to Alda only) Mara whispers to Alda." in model.prompt_of(
        model.server.requests[0]
    )


async def test_told_again_others_know_it(ensemble: Ensemble) -> None:
    told = await ensemble.tell_secret()
    model = ensemble.study.model
    model.server.forget()
    again = await ensemble.tell_bor()
    # The agent writes for Bor, too, so it was not shown the event.
    assert not any(SECRET in model.prompt_of(each) for each in model.server.requests)
    (shown,) = await ensemble.events()
    assert await ensemble.knowledge() == {SECRET: ({"Alda", "Bor"}, {"Alda", "Bor"})}
    assert shown["source_message_ids"] == [told, again]
    assert await ensemble.remembers("Bor") == [SECRET]
    assert await ensemble.remembers("Cid") == []


async def test_told_to_all_it_is_public_but_not_known_to_late_joiners(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    await ensemble.send("Cid", "present")
    await ensemble.tell_bor()
    everyone = {"Alda", "Bor", "Cid"}
    assert await ensemble.knowledge() == {SECRET: ({"public"}, everyone)}
    ensemble.people["Dan"] = str((await ensemble.account.new_character(name="Dan"))["id"])
    await ensemble.send("Dan", "present")
    assert (await ensemble.knowledge())[SECRET][1] == everyone
    assert await ensemble.remembers("Dan") == []
    # The agent may not show it while it writes for Dan.
    model = ensemble.study.model
    model.server.forget()
    await ensemble.hear("Dan looks around.", calls=[event("Dan came.")])
    assert not any(SECRET in model.prompt_of(each) for each in model.server.requests)


async def test_a_swipe_takes_the_second_telling_back(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    again = await ensemble.tell_bor()
    model = ensemble.study.model
    model.script(model.decides(significant=False))
    await ensemble.account.turn(ensemble.study.chat_id, regenerate_of=again)
    await ensemble.study.idle()
    assert await ensemble.knowledge() == {SECRET: ({"Alda"}, {"Alda"})}
    assert await ensemble.remembers("Bor") == []
    ok(await ensemble.account.ask("POST", f"/messages/{again}/activate"))
    assert (await ensemble.knowledge())[SECRET][1] == {"Alda", "Bor"}


async def test_an_undone_run_takes_its_telling_back(ensemble: Ensemble) -> None:
    told = await ensemble.tell_secret()
    await ensemble.tell_bor()
    answer = await ensemble.undo_last()
    assert [each["what"] for each in answer["undone"]] == ["event_changed"]
    assert await ensemble.knowledge() == {SECRET: ({"Alda"}, {"Alda"})}
    assert (await ensemble.events())[0]["source_message_ids"] == [told]
    assert await ensemble.remembers("Bor") == []


async def test_the_first_run_can_be_undone_alone(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    again = await ensemble.tell_bor()
    answer = await ensemble.undo_last(back=1)
    assert (len(answer["undone"]), answer["kept"]) == (1, [])
    (shown,) = await ensemble.events()
    assert shown["source_message_ids"] == [again]
    await ensemble.undo_last()
    assert await ensemble.events() == []


async def test_the_model_decides_about_other_words(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    model = ensemble.study.model
    await ensemble.tell_bor(REORDERED, same=[1])
    question = model.prompt_of(model.server.requests[-1])
    assert SECRET in question
    assert REORDERED in question
    assert await ensemble.knowledge() == {SECRET: ({"Alda", "Bor"}, {"Alda", "Bor"})}


@pytest.mark.parametrize("answer", ['{"same": []}', '{"same": [7]}', "The lens!"])
async def test_both_are_kept_if_they_differ(ensemble: Ensemble, answer: str) -> None:
    await ensemble.tell_secret()
    model = ensemble.study.model
    await ensemble.study.tell("They talk.", "Tell him.", "Alda tells Bor a part.")
    model.script(model.decides(), model.calls(event(REORDERED), FINISH), model.says(answer))
    await ensemble.study.read()
    assert await ensemble.knowledge() == {
        SECRET: ({"Alda"}, {"Alda"}),
        REORDERED: ({"Alda", "Bor"}, {"Alda", "Bor"}),
    }
    assert await ensemble.remembers("Bor") == [REORDERED]


async def test_details_of_the_first_telling_are_not_told(ensemble: Ensemble) -> None:
    await ensemble.send("Bor", "absent")
    await ensemble.hear("Mara whispers.", calls=[event(SECRET, where="The crypt", who=["Mara"])])
    await ensemble.send("Bor", "present")
    await ensemble.tell_bor()
    first, second = await ensemble.events()
    assert (first["where"], second["where"]) == ("The crypt", "")
    assert second["known_to"] == [ensemble.people["Alda"], ensemble.people["Bor"]]


async def test_what_all_listeners_know_is_not_told_again(ensemble: Ensemble) -> None:
    *_, told = await ensemble.hear("All hear it.", calls=[event(SECRET)])
    again = await ensemble.tell_bor()
    (shown,) = await ensemble.events()
    assert told in shown["source_message_ids"]
    assert again not in shown["source_message_ids"]
    ((_, detail), *_) = reversed(await ensemble.study.runs())
    assert "duplicate of" in detail.refused[0].reason


async def test_the_users_audience_is_kept(ensemble: Ensemble) -> None:
    await ensemble.tell_secret()
    (made,) = await ensemble.events()
    path = f"/chronicles/{ensemble.study.chronicle_id}/events/{made['id']}"
    await ensemble.account.patch(path, {"audience": [ensemble.people["Cid"]]})
    assert await ensemble.knowledge() == {SECRET: ({"Cid"}, {"Cid"})}
    assert await ensemble.remembers("Alda") == []
    await ensemble.tell_bor()
    assert sorted(map(str, [each["audience"] for each in await ensemble.events()])) == sorted(
        map(str, [[ensemble.people["Cid"]], [ensemble.people["Alda"], ensemble.people["Bor"]]])
    )


async def test_no_lore_is_written_from_what_not_all_heard(ensemble: Ensemble) -> None:
    await ensemble.send("Bor", "absent")
    await ensemble.hear("Only Alda hears.", calls=[entry("The lens", "It is cracked.")])
    ((_, detail), *_) = reversed(await ensemble.study.runs())
    assert detail.effects == []
    assert "Lorebooks are for everyone" in detail.refused[0].reason


async def test_what_a_secret_replaces_stays_for_others(ensemble: Ensemble) -> None:
    """The agent corrects an event with what only Alda heard."""
    await ensemble.hear("Both see the lens.", calls=[event("The lens is in the tower.")])
    await ensemble.send("Bor", "absent")
    await ensemble.hear(
        "Alda moves it.", calls=[event("Alda hid the lens in the cellar.", supersedes="E1")]
    )
    assert await ensemble.remembers("Alda") == ["Alda hid the lens in the cellar."]
    assert await ensemble.remembers("Bor") == ["The lens is in the tower."]


async def test_a_rebuild_finds_both_tellings(ensemble: Ensemble) -> None:
    told = await ensemble.tell_secret()
    again = await ensemble.tell_bor()
    (before,) = await ensemble.events()
    model, study = ensemble.study.model, ensemble.study
    model.script(
        model.decides(significant=False),  # the greeting
        model.decides(),
        model.calls(event(SECRET), FINISH),
        model.decides(),
        model.calls(event(SECRET), FINISH),
    )
    async with rebuilder(study):
        await study.account.post(
            f"/chronicles/{study.chronicle_id}/rebuild", {"chat_id": study.chat_id}, 202
        )
        assert (await wait_for_end(study))["state"] == "done"
    assert await ensemble.knowledge() == {SECRET: ({"Alda", "Bor"}, {"Alda", "Bor"})}
    (rebuilt,) = await ensemble.events()
    assert rebuilt["id"] != before["id"]
    assert rebuilt["source_message_ids"] == [told, again]
