"""The container with a Qdrant server that contract tests start."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from tests.fakes.scripted_server import Answer, Request, ScriptedServer
from tests.support.databases import start_qdrant

pytestmark = pytest.mark.anyio

MESSAGE = "pull access denied for testcontainers/ryuk,\n repository does not exist"


class Engine(ScriptedServer):
    """A container engine that can make no container."""

    usual_answer: ClassVar[Answer] = Answer(500, body={"message": MESSAGE})

    def wants_stream(self, request: Request) -> bool:  # noqa: ARG002  # nothing is streamed
        """Nothing is streamed."""
        return False


async def test_the_message_of_an_engine_that_starts_no_container_is_the_reason_of_the_skip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Engine() as engine:
        engine.aside["/version"] = Answer(body={"ApiVersion": "1.47", "Version": "27.0"})
        monkeypatch.setenv("DOCKER_HOST", engine.url.replace("http:", "tcp:"))
        with pytest.raises(pytest.skip.Exception, match=r"pull access denied .*, repository does"):
            await asyncio.to_thread(start_qdrant)
