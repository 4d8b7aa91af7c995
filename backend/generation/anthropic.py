"""Anthropic's models, through its Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.generation import _anthropic_mapping as wire
from backend.generation._provider import ModelProvider, ServerConfig
from backend.generation._refusals import Refusal
from backend.generation.client import ModelClient
from backend.generation.sampling import SamplingField
from backend.generation.server_model import AnswerReader, ModelRequest, ServerModel

WHO = "Anthropic"
DEFAULT_BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
MESSAGES = "/v1/messages"

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "stop", "max_output_tokens"),
        *("thinking_budget", "reasoning_effort", "start_reply_with"),
    }
)
"""Settings that the API has a field for. A model may take fewer, and answers with 400."""

EXCLUDES: Mapping[SamplingField, Sequence[SamplingField]] = {
    **dict.fromkeys(
        ("thinking_budget", "reasoning_effort"),
        ("temperature", "top_k", "top_p", "start_reply_with"),
    ),
    "temperature": ("top_p",),
}
"""Settings that may be left out while another one is set: see `find_conflicts`."""

ADAPTIVE = "adaptive_thinking"
"""Remembered in `ModelAbilities.without` of models that refuse a budget for thinking."""

_SETTING_NAMES: Mapping[str, Sequence[SamplingField]] = {
    # The one that Talekeeper prefers to keep comes first: the last one that is named is left out.
    "effort": ("reasoning_effort",),
    "thinking": ("thinking_budget", "reasoning_effort"),
    "budget_tokens": ("thinking_budget",),
    "stop_sequences": ("stop",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicConfig(ServerConfig):
    """How Anthropic's API is reached."""

    api_key: str = field(repr=False)


class AnthropicProvider(ModelProvider[AnthropicConfig, ModelClient]):
    """One key's connection to Anthropic, shared by its models."""

    who, vendor_url = WHO, DEFAULT_BASE_URL

    def _connect(self) -> ModelClient:
        return self._make_client({"x-api-key": self.config.api_key, "anthropic-version": VERSION})

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()


class AnthropicModel(ServerModel[AnthropicProvider]):
    """A `ChatModel` of Anthropic's."""

    def _address(self, *, stream: bool) -> str:  # noqa: ARG002 - one address for both
        return (self._provider.config.base_url or DEFAULT_BASE_URL).rstrip("/") + MESSAGES

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        body = wire.body(
            request.shaped_prompt,
            request.sampling,
            start=request.start,
            max_output_tokens=self.spec.max_output_tokens,
            is_adaptive=ADAPTIVE in self._provider.abilities.of(self.spec.name).without,
        )
        body["model"] = self.spec.name
        if request.tools:
            body["tools"] = wire.declarations(request.tools)
        if request.schema is not None:
            wanted = {"type": "json_schema", "schema": wire.plain_schema(request.schema)}
            body["output_config"] = {**body.get("output_config", {}), "format": wanted}
        return {**body, **({"stream": True} if stream else {})}

    def _reader(self, request: ModelRequest) -> AnswerReader:  # noqa: ARG002 - the same for all
        return wire.MessageReader()

    def _setting_names(
        self,
        request: ModelRequest,  # noqa: ARG002 - the same for all
    ) -> Mapping[str, Sequence[SamplingField]]:
        return _SETTING_NAMES

    def _fit_settings(self, request: ModelRequest) -> ModelRequest:
        """See `ServerModel`. The API refuses spaces at the end of the beginning of a reply."""
        conflicts = wire.find_conflicts(request.sampling)
        fitted = request.without(*conflicts) if conflicts else request
        return fitted.starting_with(fitted.start.rstrip())

    def _leave_out(
        self,
        request: ModelRequest,
        refusal: Refusal,
        names: Mapping[str, Sequence[SamplingField]],
        text: str,
    ) -> ModelRequest | None:
        """See `ServerModel`. Models that refuse a budget for thinking choose it themselves."""
        known = self._provider.abilities.of(self.spec.name).without
        is_budget = "thinking_budget" in names[refusal.member]
        if is_budget and "adaptive" in text and ADAPTIVE not in known:
            self._provider.learn(self.spec.name, without=(*known, ADAPTIVE))
            return request
        return super()._leave_out(request, refusal, names, text)
