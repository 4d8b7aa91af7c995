"""Scripted models on a real socket."""

from __future__ import annotations

from typing import Any

from tests.fakes.openai_server import DONE, MODEL, MODEL_ID, OpenAIServer, chunk, stream
from tests.fakes.scripted_server import Answer, Gate


def asking(model: OpenAIServer) -> dict[str, Any]:
    """Settings of a server that gets its replies from this model."""
    return {"openai_base_url": model.url, "openai_models": (MODEL,), "default_model": MODEL_ID}


def held_back(gate: Gate) -> Answer:
    """A reply that stops in the middle until the gate is opened: `Once upon a time.`"""
    return stream(chunk(content="Once upon"), gate, chunk(content=" a time."), chunk("stop"), DONE)
