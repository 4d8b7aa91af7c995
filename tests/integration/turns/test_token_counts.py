"""Counts of texts that nobody has sent yet."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from backend.generation.tokens import choose_tokenizer, get_tokenizer
from backend.llm.token_ratios import TokenRatio
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

TOKENS = "/api/v1/tokens"
PROSE = "The rain had not stopped since the morning, and nobody at the inn spoke of leaving. "


async def count(ada: Account, *texts: str, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = ok(await ada.client.post(TOKENS, json={"texts": texts, **body}))
    return found


async def test_each_text_is_counted_in_its_place(ada: Account) -> None:
    tokenizer = get_tokenizer(choose_tokenizer("o200k_base"))
    assert await count(ada, PROSE, "", "Mara") == {
        "counts": [tokenizer.count(PROSE), 0, tokenizer.count("Mara")],
        "tokenizer": tokenizer.name,
    }
    assert (await count(ada))["counts"] == []


async def test_counts_are_scaled_by_what_the_model_is_known_to_make_of_them(
    server: Running, ada: Account
) -> None:
    plain = (await count(ada, PROSE * 10, model="demo"))["counts"][0]
    user_id, model = UUID(ada.user["id"]), f"demo {choose_tokenizer('o200k_base')}"
    async with server.parts.database.write() as session:
        learned = {"ratio": 1.5, "samples": 9}
        session.add(TokenRatio(user_id=user_id, model=model, **learned))
    try:
        assert (await count(ada, PROSE * 10, model="demo"))["counts"] == [round(plain * 1.5)]
    finally:
        async with server.parts.database.write() as session:
            await session.delete(await session.get_one(TokenRatio, (user_id, model)))


async def test_a_model_that_there_is_not_is_refused(ada: Account) -> None:
    body = {"texts": [PROSE], "model": "gemini/none"}
    assert problem(await ada.client.post(TOKENS, json=body), 422, "unknown-model")["models"]


async def test_more_texts_or_longer_ones_than_forms_have_are_refused(ada: Account) -> None:
    for texts in (["a"] * 101, ["a" * 200_001]):
        problem(await ada.client.post(TOKENS, json={"texts": texts}), 422, "validation-failed")
    body = {"texts": ["a " * 100_000] * 22}
    problem(await ada.client.post(TOKENS, json=body), 413, "too-large")


async def test_a_key_that_may_only_read_may_count(server: Running, ada: Account) -> None:
    key = {"label": "a script", "scope": "read"}
    token = ok(await ada.client.post("/api/v1/api-keys", json=key), 201)["token"]
    async with server.program(token) as client:
        ok(await client.post(TOKENS, json={"texts": [PROSE]}))
