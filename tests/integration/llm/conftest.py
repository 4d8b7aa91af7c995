"""A database shared by the tests of a module, and a server to be a provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.fakes.openai_server import OpenAIServer
from tests.support.shared import shared_url

__all__ = ["shared_url"]


@pytest.fixture
async def model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as model:
        yield model
