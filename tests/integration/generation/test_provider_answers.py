"""Answers of providers over a real socket, through every adapter."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from backend.generation.model import ModelError, Prompt, PromptMessage
from backend.generation.sampling import Sampling
from tests.fakes.provider_answers import ANSWERS, Seen
from tests.fakes.scripted_server import Answer
from tests.integration.generation.conftest import Vendor

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Is the ferryman still waiting for me?")])


def is_text(body: object) -> bool:
    return isinstance(body, str) and not body.startswith("<")


def replay(seen: Seen) -> Answer:
    """The answer as a server sends it."""
    if seen.in_stream:
        return Answer(events=[seen.body])
    headers = dict(seen.headers)
    if is_text(seen.body):
        headers.setdefault("content-type", "text/plain")
    body = seen.body.encode() if isinstance(seen.body, str) else seen.body
    return Answer(status=seen.status, headers=headers, body=b"" if body is None else body)


@pytest.mark.parametrize("seen", ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_becomes_the_error_that_names_its_cause(vendor: Vendor, seen: Seen) -> None:
    answer = replay(seen)
    # A stream without an event is asked for once more, as a whole.
    requests = 2 if answer.status == 200 and is_text(seen.body) else 1
    vendor.server.script(*[answer] * requests)

    with pytest.raises(ModelError) as caught:
        async with aclosing(vendor.connect().stream(PROMPT, Sampling())) as pieces:
            async for _ in pieces:
                pass

    assert type(caught.value) is seen.kind
    assert len(vendor.server.requests) == requests, "no other form of the request is tried"
