"""Tests of `/providers`: a user's own models, from the key to the reply."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from backend.accounts.models import User
from backend.llm import user_models
from backend.llm.models import Provider
from tests.fakes.one_slot_server import OneSlotServer
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, error, reply
from tests.fakes.scripted_server import Answer
from tests.integration.turns.seeding import identity_of
from tests.support.logs import caught_logs
from tests.support.server import Account, Running, ok, problem, text_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PROVIDERS = "/api/v1/providers"
OWN = f"mine/{MODEL}"


def provider(model: OpenAIServer, **fields: Any) -> dict[str, Any]:
    entry = {"name": MODEL, "context_window": 16_000}
    usual = {"kind": "openai", "slug": "mine", "name": "My server", "models": [entry]}
    return {**usual, "base_url": model.url, "api_key": API_KEY, **fields}


async def add(account: Account, model: OpenAIServer, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(
        await account.client.post(PROVIDERS, json=provider(model, **fields)), 201
    )
    return made


async def models(account: Account) -> dict[str, dict[str, Any]]:
    listed = ok(await account.client.get("/api/v1/models"))["items"]
    return {each["id"]: each for each in listed}


async def choose(account: Account, model_id: str) -> None:
    ok(await account.client.patch("/api/v1/me/settings", json={"model": model_id}))


async def test_a_users_own_model_answers_the_next_turn(ada: Account, model: OpenAIServer) -> None:
    await add(ada, model, models=[{"name": MODEL, "price": {"input": 1, "output": 2}}])
    await choose(ada, OWN)
    chat = await ada.new_chat()
    model.script(reply("Well met."))
    assert text_of(await ada.turn(chat["id"], text="Hello.")) == "Well met."
    assert model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"
    told = (await models(ada))[OWN]
    assert (told["provider"], told["provider_name"]) == ("mine", "My server")
    assert told["price"] == {"input": 1.0, "output": 2.0, "cached_input": None}
    assert (told["figures_from"], told["context_window"]) == ("default", 32_768)


async def test_others_see_neither_a_provider_nor_its_models(
    ada: Account, ben: Account, model: OpenAIServer
) -> None:
    await add(ada, model)
    assert OWN in await models(ada)
    assert set(await models(ben)) == {"demo"}
    assert ok(await ben.client.get(PROVIDERS))["items"] == []
    refused = await ben.client.patch("/api/v1/me/settings", json={"model": OWN})
    assert OWN in problem(refused, 422, "unknown-model")["detail"]


async def test_a_key_is_never_shown_again(ada: Account, model: OpenAIServer) -> None:
    headers = {"X-Team": "a-secret-of-the-team", "X-Short": "secret"}
    made = await add(ada, model, extra_headers=headers)
    assert made["key_hint"] == API_KEY[-4:]
    assert made["extra_headers"] == {"X-Team": "team", "X-Short": None}
    listed = await ada.client.get(PROVIDERS)
    assert API_KEY not in listed.text
    assert "secret" not in listed.text
    short = await add(ada, model, slug="short", api_key="sk-short")
    assert short["key_hint"] is None


async def test_a_change_counts_at_once_and_what_is_absent_stays(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model)
    path, revised = f"{PROVIDERS}/{made['id']}", {"If-Match": '"1"'}
    await models(ada)  # now the models are cached
    entries = [{"name": "other", "context_window": 9_000, "max_output_tokens": 700}]
    changed = await ada.client.patch(path, json={"models": entries}, headers=revised)
    assert ok(changed)["key_hint"] == made["key_hint"]
    assert changed.headers["etag"] == '"2"'
    told = await models(ada)
    assert set(told) == {"mine/other", "demo"}
    assert (told["mine/other"]["context_window"], told["mine/other"]["figures_from"]) == (
        9_000,
        "user",
    )
    problem(await ada.client.patch(path, json={}, headers=revised), 412, "revision-mismatch")
    without = ok(await ada.client.patch(path, json={"api_key": None, "name": None}))
    assert (without["key_hint"], without["name"]) == (None, "mine")
    assert (await ada.client.delete(path)).status_code == 204
    assert set(await models(ada)) == {"demo"}


async def test_secrets_go_to_no_other_server_than_they_were_given_for(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model, extra_headers={"X-Team": "night-watch"})
    path = f"{PROVIDERS}/{made['id']}"
    async with OpenAIServer() as other:
        for change in (
            {"base_url": other.url},
            {"base_url": other.url, "extra_headers": {"X-Team": None}},
            {"base_url": other.url, "api_key": API_KEY},
            {"base_url": model.url.replace("http://", "https://")},
        ):
            refused = await ada.client.patch(path, json=change)
            assert "Enter" in problem(refused, 422, "validation-failed")["detail"]
        assert ok(await ada.client.get(path))["base_url"] == model.url
        ok(await ada.client.patch(path, json={"base_url": f"{model.url}/more"}))
        again = {"base_url": other.url, "api_key": API_KEY, "extra_headers": {"X-Team": "day"}}
        ok(await ada.client.patch(path, json=again))
        other.script(Answer(body={"data": [{"id": MODEL}]}), reply("Yes."))
        assert ok(await ada.client.post(f"{path}/test", json={}))["ok"]
    bare = ok(await ada.client.post(PROVIDERS, json={"preset": "ollama"}), 201)
    moved = {"base_url": model.url}
    ok(await ada.client.patch(f"{PROVIDERS}/{bare['id']}", json=moved))


async def test_a_preset_needs_a_key_alone_and_slugs_do_not_collide(ada: Account) -> None:
    presets = ok(await ada.client.get("/api/v1/provider-presets"))["items"]
    assert {"google-ai-studio", "ollama", "other"} <= {each["name"] for each in presets}
    body = {"preset": "openrouter", "api_key": "sk-or-v1-0123456789"}
    first, second = [ok(await ada.client.post(PROVIDERS, json=body), 201) for _ in range(2)]
    assert (first["slug"], second["slug"]) == ("openrouter", "openrouter-2")
    assert (first["name"], first["base_url"]) == ("OpenRouter", "https://openrouter.ai/api/v1")
    taken = await ada.client.post(PROVIDERS, json={**body, "slug": "openrouter"})
    problem(taken, 409, "slug-taken")


async def test_an_unknown_server_is_named_after_its_host(ada: Account, model: OpenAIServer) -> None:
    body = {"preset": "other", "base_url": model.url}
    made = ok(await ada.client.post(PROVIDERS, json=body), 201)
    assert (made["slug"], made["name"]) == ("server", urlsplit(model.url).netloc)
    named = ok(await ada.client.post(PROVIDERS, json={**body, "name": "The box"}), 201)
    assert (named["slug"], named["name"]) == ("server-2", "The box")


async def test_a_program_whose_port_is_talekeepers_is_looked_for_at_the_next(ada: Account) -> None:
    presets = ok(await ada.client.get("/api/v1/provider-presets"))["items"]
    (vllm,) = [each for each in presets if each["name"] == "vllm"]
    assert (vllm["taken_port"], vllm["base_url"]) == (8000, "http://127.0.0.1:8001/v1")
    assert {each["taken_port"] for each in presets if each is not vllm} == {None}
    made = ok(await ada.client.post(PROVIDERS, json={"preset": "vllm"}), 201)
    assert made["base_url"] == vllm["base_url"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"base_url": "file:///etc/passwd"}, "base_url"),
        ({"base_url": "http://user:word@host/v1"}, "base_url"),
        ({"base_url": None}, "base_url"),
        ({"api_key": "sk-a key\n"}, "api_key"),
        ({"kind": "gemini", "api_key": None}, "api_key"),
        ({"kind": "anthropic", "embedding_model": "a"}, "embedding_model"),
        ({"extra_headers": {"Authorization": "x"}}, "Authorization"),
        ({"extra_headers": {"X-A": "a\r\nHost: b"}}, "extra_headers"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "models"),
        ({"models": [{"name": "a", "context_window": 3}]}, "context_window"),
        ({"extra_body": {"a": "b" * 40_000}}, "extra_body"),
        ({"slug": "No slug"}, "slug"),
        ({"thought_tags": [{"opening": "<a>", "closing": " "}]}, "thought_tags"),
        ({"thought_tags": [{"opening": "<a>", "closing": "b" * 41}]}, "thought_tags"),
        ({"thought_tags": [{"opening": "<a>", "closing": "</a>"}] * 11}, "thought_tags"),
        ({"preset": "nobody"}, "preset"),
    ],
)
async def test_an_invalid_provider_is_refused_by_name(
    ada: Account, model: OpenAIServer, fields: dict[str, Any], named: str
) -> None:
    answer = await ada.client.post(PROVIDERS, json=provider(model, **fields))
    assert answer.status_code in {400, 422}
    assert named in answer.text
    assert API_KEY not in answer.text
    assert ok(await ada.client.get(PROVIDERS))["items"] == []


async def test_there_may_be_twenty(ada: Account, model: OpenAIServer) -> None:
    for number in range(20):
        await add(ada, model, slug=f"s{number}")
    more = await ada.client.post(PROVIDERS, json=provider(model))
    problem(more, 409, "too-many-providers")


async def test_signing_out_forgets_the_keys_and_signing_in_brings_them_back(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    await add(ada, model)
    await choose(ada, OWN)
    chat = await ada.new_chat()
    model.script(reply("One."), reply("Two."))
    assert text_of(await ada.turn(chat["id"], text="First.")) == "One."
    kept = server.parts.user_models.kept
    assert (await ada.client.delete("/api/v1/sessions/current")).status_code == 204
    assert server.parts.user_models.kept == kept - 1
    async with server.signed_in(ada.name) as again:
        assert text_of(await again.turn(chat["id"], text="Second.")) == "Two."


async def test_a_provider_without_an_owner_does_not_exist(ada: Account) -> None:
    problem(await ada.client.get(f"{PROVIDERS}/{uuid4()}"), 404, "provider-not-found")


async def test_a_test_keeps_what_is_listed_and_asks_one_of_it(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model, models=[])
    assert set(await models(ada)) == {"demo"}
    price = {"prompt": "0.000001", "completion": "0.000002"}
    listed = [{"id": MODEL, "context_length": 64_000, "pricing": price}, {"id": 3}]
    model.script(Answer(body={"data": listed}), reply("Hello."))
    tested = ok(await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={}))
    assert (tested["ok"], tested["models"], tested["model"]) == (True, 1, MODEL)
    assert [step["step"] for step in tested["steps"]] == ["models", "reply"]
    assert [request.path for request in model.requests] == ["/v1/models", "/v1/chat/completions"]
    told = (await models(ada))[OWN]
    assert (told["context_window"], told["figures_from"]) == (64_000, "provider")
    assert told["price"]["output"] == 2.0


async def test_a_test_says_what_failed_and_keeps_what_was_known(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model)
    refused = Answer(401, body={"error": {"message": f"{API_KEY} is wrong"}})
    model.script(refused, refused)
    answer = await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={})
    tested = ok(answer)
    assert (tested["ok"], tested["problem"]["slug"]) == (False, "model-key-refused")
    assert tested["problem"]["title"] == "The provider rejected the API key"
    assert tested["problem"]["provider_message"] == "[removed] is wrong"
    assert API_KEY not in answer.text
    assert OWN in await models(ada)


async def test_a_provider_s_own_tags_count_and_the_search_for_thoughts_can_be_off(
    ada: Account, model: OpenAIServer
) -> None:
    tags = [{"opening": "(muse)", "closing": "(/muse)"}]
    made = await add(ada, model, thought_tags=tags)
    await choose(ada, OWN)
    chat = await ada.new_chat()
    told = "(muse)Who?(/muse)Well met."
    model.script(reply(told), reply(told))
    assert text_of(await ada.turn(chat["id"], text="Hello.")) == "Well met."
    assert (made["thought_tags"], made["reads_thoughts"]) == (tags, True)
    path = f"{PROVIDERS}/{made['id']}"
    changed = ok(await ada.client.patch(path, json={"reads_thoughts": False}))
    assert (changed["thought_tags"], changed["reads_thoughts"]) == (tags, False)
    assert text_of(await ada.turn(chat["id"], text="Hello?")) == told


async def test_that_a_model_thinks_first_is_kept_with_its_provider(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    made = await add(ada, model)
    await choose(ada, OWN)
    chat = await ada.new_chat()
    model.script(reply("Who?</think>", "Well met."), reply("Who?</think>", "Well met."))
    await ada.turn(chat["id"], text="Hello.")

    async def kept() -> bool:
        query = select(Provider.abilities).where(Provider.id == UUID(made["id"]))
        async with server.parts.database.read() as session:
            return "thinks_first" in (await session.scalar(query) or "")

    await until(kept)
    server.parts.user_models.user_signed_out(UUID(ada.user["id"]))
    events = await ada.turn(chat["id"], text="Hello?")

    assert "text.reset" not in {event.name for event in events}
    assert text_of(events) == "Well met."


async def test_abilities_that_cannot_be_stored_are_logged(
    ada: Account, server: Running, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await add(ada, model)
    await choose(ada, OWN)
    chat = await ada.new_chat()
    model.script(reply("Who?</think>", "Well met."))

    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(user_models, "update", fail)
    with caught_logs() as logged:
        assert text_of(await ada.turn(chat["id"], text="Hello.")) == "Well met."
        await server.parts.user_models.settle()
    assert [line["provider_id"] for line in logged.lines("provider.abilities_not_stored")] == [
        made["id"]
    ]


async def test_learned_abilities_are_kept_until_a_test_or_a_change(
    ada: Account, server: Running, model: OpenAIServer
) -> None:
    made = await add(ada, model)
    await choose(ada, OWN)
    chat = await ada.new_chat()
    said = "Unknown parameter: 'stream_options'."

    async def asks_for_usage() -> bool:
        """True if the next turn still sends the setting that the server refused."""
        server.parts.user_models.user_signed_out(UUID(ada.user["id"]))
        before = len(model.requests)
        await ada.turn(chat["id"], text="Go on.")
        return "stream_options" in model.requests[before].body

    async def kept() -> bool:
        query = select(Provider.abilities).where(Provider.id == UUID(made["id"]))
        async with server.parts.database.read() as session:
            return await session.scalar(query) is not None

    model.script(error(400, message=said, code="unknown_parameter"), reply("Well met."))
    assert text_of(await ada.turn(chat["id"], text="Hello.")) == "Well met."
    await until(kept)
    assert not await asks_for_usage()
    ok(await ada.client.patch(f"{PROVIDERS}/{made['id']}", json={"name": "Renamed"}))
    assert not await asks_for_usage()
    ok(await ada.client.patch(f"{PROVIDERS}/{made['id']}", json={"extra_body": {"n": 1}}))
    assert await asks_for_usage()

    model.script(error(400, message=said, code="unknown_parameter"), reply("Well met."))
    await ada.turn(chat["id"], text="And again.")
    await until(kept)
    ok(await ada.client.post(f"{PROVIDERS}/{made['id']}/test", json={}))
    assert await asks_for_usage()


@pytest.mark.parametrize(
    ("preset", "usual"),
    [
        *[(name, 1) for name in ("llama-cpp", "koboldcpp", "lm-studio", "ollama")],
        *[(name, None) for name in ("vllm", "tabbyapi", "openrouter", "other")],
    ],
)
async def test_its_preset_says_how_many_requests_a_server_answers_at_a_time(
    ada: Account, model: OpenAIServer, preset: str, usual: int | None
) -> None:
    made = await add(ada, model, preset=preset)
    assert (made["concurrency"], made["usual_concurrency"]) == (None, usual)


async def test_its_user_says_how_many_requests_a_server_answers_at_a_time(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model, preset="llama-cpp", concurrency=3)
    path, limits = f"{PROVIDERS}/{made['id']}", list[int | None]()
    identity = await identity_of(server, ada)
    for concurrency in (3, 0, None):
        changed = ok(await ada.client.patch(path, json={"concurrency": concurrency}))
        assert (changed["concurrency"], changed["usual_concurrency"]) == (concurrency, 1)
        async with server.parts.database.read() as session:
            user = await session.get_one(User, identity.user_id)
            found = await server.parts.user_models.of(session, user, identity.sealer)
        limit = found.find_limit(OWN)
        limits.append(limit.concurrency if limit else None)
    assert limits == [3, None, 1]
    for wrong in (-1, 101, 1.5):
        problem(await ada.client.patch(path, json={"concurrency": wrong}), 422, "validation-failed")


async def test_the_reported_slots_of_a_server_are_stored(ada: Account) -> None:
    async with OneSlotServer(slots=4) as model:
        made = await add(ada, model, preset="llama-cpp")
        await choose(ada, OWN)
        chat = await ada.new_chat()
        await ada.turn(chat["id"], text="Hello.")

        async def are_kept() -> bool:
            view = ok(await ada.client.get(f"{PROVIDERS}/{made['id']}"))
            return bool(view["usual_concurrency"] == 4)

        await until(are_kept)
