"""A server that speaks OpenAI's chat completions: how it is reached, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from backend.generation._provider import ModelProvider, ServerConfig
from backend.generation.client import ModelClient
from backend.generation.figures import ToolSupport
from backend.setting_types import ServerName

WHO = "The OpenAI-compatible server"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompatibleConfig(ServerConfig):
    """How such a server is reached. `base_url` usually ends in `/v1`.

    Attributes:
        context_window: Tokens of models whose window is not known.
        max_output_tokens: The longest reply of models of which it is not known.
        tool_support: How its models call tools, until its answers show another way.
        server: Which program or service it is.
    """

    base_url: str
    context_window: int = 32_768
    max_output_tokens: int = 8_192
    tool_support: ToolSupport = "native"
    server: ServerName = "other"


class OpenAICompatibleProvider(ModelProvider[OpenAICompatibleConfig, ModelClient]):
    """The connection to one server, shared by its models."""

    who = WHO

    def _connect(self) -> ModelClient:
        key = self.config.api_key
        return self._make_client({"authorization": f"Bearer {key}"} if key else {})

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()
