"""A model on an OpenAI-compatible server: replies, calls of tools, and JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec import structs

from backend.generation import _openai_mapping as wire
from backend.generation._json import mapping
from backend.generation._openai_calls import CallFragments
from backend.generation._openai_counts import count_usage
from backend.generation._openai_json import json_members, read_value, told_schema
from backend.generation._openai_refusals import RENAMED, SPARED, read_refusal
from backend.generation._replies import Delta, relay, tool_answer, whole
from backend.generation._server_sent import EventReader, parse_event
from backend.generation._thinking import ThinkReader, without_thoughts
from backend.generation.model import (
    Finish,
    ModelError,
    ModelMalformedAnswerError,
    ModelRequestError,
    ModelSettingRefusedError,
    ModelSpec,
    ModelWritesNoJsonError,
    Piece,
    Prompt,
    StructuredAnswer,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolAnswer,
)
from backend.generation.openai_compatible import WHO, Connection, OpenAICompatibleProvider
from backend.generation.openai_servers import OPENAI_SERVERS
from backend.generation.sampling import Sampling, SamplingField, check_taken
from backend.generation.server_abilities import JSON_WAYS, JsonWay

if TYPE_CHECKING:
    import httpx2
    from openai import APIError  # noqa: TID251 - the adapter's own part

COMPLETIONS = "/chat/completions"
"""Called without the SDK's own types: with them, 1,000 messages take 150 ms to be sent, and each
token 0.2 ms to be read, in which the event loop does nothing else. Of what is left its stream of
events costs a third, and its way of sending a request as well: neither is used."""

_FORM: Mapping[str, SamplingField] = {"response_format": "json_schema"}
_NOTHING: Mapping[str, SamplingField] = {}

END = b"[DONE]"

END_TIMEOUT = 0.1
"""Seconds for a server to end its answer after it has said so. One that does not loses its
connection."""


class OpenAICompatibleModel:
    """A `ChatModel` on an OpenAI-compatible server."""

    def __init__(self, spec: ModelSpec, provider: OpenAICompatibleProvider) -> None:
        known = provider.abilities.of(spec.name)
        self.spec = replace(
            spec,
            accepts=spec.accepts.difference(known.refused),
            refused=frozenset(known.refused),
        )
        self._provider = provider
        self._server = OPENAI_SERVERS[provider.config.server]
        self._url = provider.config.base_url.rstrip("/") + COMPLETIONS
        self._json_way: JsonWay | None = None

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, tools=tools, schema=schema)
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        timeout = self._provider.config.chunk_timeout
        is_plain = not (tools or schema or prompt.rounds)
        start = sampling.start_reply_with or "" if is_plain else ""
        own = _FORM if is_plain and sampling.json_schema else _NOTHING
        heard: list[Piece] = []
        async with self._provider.connected() as connection:
            deltas = self._deltas(connection, body, ThinkReader(start), own=own)
            async with aclosing(relay(deltas, who=WHO, chunk_timeout=timeout)) as pieces:
                async for piece in pieces:
                    heard.append(piece)
                    if isinstance(piece, Finish) and is_plain:
                        counted = await self._counted(connection, prompt, heard)
                        if counted is not None:
                            yield counted
                    yield piece

    async def _counted(
        self, connection: Connection, prompt: Prompt, heard: Sequence[Piece]
    ) -> TokenUsage | None:
        """The usage of a reply whose server reported none, where it can count."""
        known = self._provider.abilities.of(self.spec.name).counts
        routes = [each for each in self._server.counts if known in (None, each.path)]
        if not routes or any(isinstance(piece, TokenUsage) for piece in heard):
            return None
        counts = await count_usage(
            connection,
            self.spec.name,
            routes,
            prompt,
            said="".join(piece.text for piece in heard if isinstance(piece, TextPiece)),
            thought="".join(piece.text for piece in heard if isinstance(piece, ThinkingPiece)),
        )
        if counts.route not in (None, known):
            self._provider.learn(self.spec.name, counts=counts.route)
        return counts.usage

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, tools=tools)
        return tool_answer(await self._whole(body), who=WHO)

    async def structured(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """See `ChatModel`. Asks in the next way of `JSON_WAYS` where one doesn't work.

        A refusal settles that; an answer that is no JSON may be chance, so that the next call
        begins with the best way again, and what two in a row end with is remembered.
        """
        known = self._provider.abilities.of(self.spec.name).json
        wrote_no_json = False
        for way in JSON_WAYS[JSON_WAYS.index(known or JSON_WAYS[0]) :]:
            body = self._body(told_schema(prompt, schema, way), sampling.without_form())
            body |= json_members(schema, way)
            try:
                is_tried = way not in (known, JSON_WAYS[-1])
                answer = await self._whole(body, is_tried=is_tried)
                value = read_value(answer, way, who=WHO)
            except ModelSettingRefusedError:
                raise
            except ModelMalformedAnswerError:
                if way == known:
                    raise
                wrote_no_json = True
            except ModelRequestError:
                if way == JSON_WAYS[-1] and not wrote_no_json:
                    raise
            else:
                if way != known and (not wrote_no_json or way == self._json_way):
                    self._provider.learn(self.spec.name, json=way)
                self._json_way = way
                return StructuredAnswer(value, answer.usage)
        raise ModelWritesNoJsonError(
            f"{self.spec.id} was asked for JSON and wrote something else, in whichever way it was "
            f"asked ({', '.join(JSON_WAYS)})."
        )

    def _body(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The request's body."""
        check_taken(sampling, accepts=self.spec.accepts, model_id=self.spec.id)
        if tools or prompt.rounds or schema is not None:
            sampling = sampling.without_form()
        if self._server.needs_limit and sampling.max_output_tokens is None:
            sampling = structs.replace(sampling, max_output_tokens=self.spec.max_output_tokens)
        start = sampling.start_reply_with
        body: dict[str, Any] = {
            "model": self.spec.name,
            "messages": wire.messages(prompt, start, self._server.prefix),
            **wire.settings(sampling, self._server.names),
            **(self._server.prefill if start else {}),
        }
        if tools:
            body["tools"] = wire.declarations(tools)
        if schema is not None:
            known = self._provider.abilities.of(self.spec.name).json
            body |= json_members(schema, "json_object" if known == "json_object" else "json_schema")
        return body

    async def _deltas(
        self,
        connection: Connection,
        body: dict[str, Any],
        reader: ThinkReader,
        *,
        own: Mapping[str, SamplingField],
    ) -> AsyncGenerator[Delta, None]:
        calls, events = CallFragments(), EventReader()
        last_event = time.monotonic()
        try:
            response = await self._post(connection, body, own=own)
            async with aclosing(response):
                if response.headers.get("content-type", "").startswith("application/json"):
                    answer = _checked(connection, response, await response.aread())
                    yield reader.read(wire.read_answer(answer))
                    return
                received = response.aiter_bytes()
                async for part in received:
                    before = last_event
                    for data in events.feed(part):
                        last_event = time.monotonic()
                        if data.startswith(END):
                            await _read_up(received)
                            return
                        chunk = _checked(connection, response, data)
                        yield reader.read(wire.read_chunk(chunk, calls))
                    # Comments keep a slow server from being taken for a silent one, for a while.
                    until = before + self._provider.config.answer_timeout
                    if last_event == before and time.monotonic() < until:
                        yield Delta()
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            if own and _fails_inside(error):
                raise self._refusal(own["response_format"], for_good=True) from None
            raise self._failure(error, is_tried="response_format" in body) from None

    async def _whole(self, body: dict[str, Any], *, is_tried: bool = False) -> Delta:
        """The answer to a request. Where a way is only tried, a 500 is a refusal of it."""

        def failure(error: Exception) -> ModelError:
            return self._failure(error, is_tried=is_tried)

        async def ask(connection: Connection) -> Delta:
            response = await self._post(connection, body)
            answer = _checked(connection, response, await response.aread())
            return without_thoughts(wire.read_answer(answer))

        async with self._provider.connected() as connection:
            timeout = self._provider.config.answer_timeout
            return await whole(ask(connection), who=WHO, answer_timeout=timeout, failure=failure)

    def _failure(self, error: Exception, *, is_tried: bool) -> ModelError:
        if is_tried and _fails_inside(error):
            return ModelRequestError(f"{WHO} fails at such a request (500).")
        return self._provider.failure(error)

    async def _post(
        self,
        connection: Connection,
        body: dict[str, Any],
        *,
        own: Mapping[str, SamplingField] = _NOTHING,
    ) -> httpx2.Response:
        """Send a request, without what the server is known not to take.

        A member of ours that it refuses is left out, or goes under its other name, from then on. A
        setting of the user's is not: `ModelSettingRefusedError` names it. `own` are members that
        hold a setting of the user's here, and something else in other requests.
        """
        while True:
            known = self._provider.abilities.of(self.spec.name)
            sent = {**_without(body, known.without), **self._provider.config.extra_body}
            try:
                return await connection.post(self._url, sent)
            except connection.api_error as error:
                self._adapt(error, sent, own)

    def _adapt(
        self, error: APIError, sent: Mapping[str, Any], own: Mapping[str, SamplingField]
    ) -> None:
        """Learn which member of a request is refused; raises where it is not one of ours."""
        names: dict[str, SamplingField] = {**wire.setting_names(self._server.names), **own}
        refusal = read_refusal(error, [name for name in (*names, "stream_options") if name in sent])
        if refusal is None:
            raise error
        known = self._provider.abilities.of(self.spec.name)
        if refusal.for_good and refusal.member in SPARED.difference(known.without):
            self._provider.learn(self.spec.name, without=(*known.without, refusal.member))
            return
        if (setting := names.get(refusal.member)) is None:
            raise error
        raise self._refusal(setting, for_good=refusal.for_good)

    def _refusal(self, setting: SamplingField, *, for_good: bool) -> ModelSettingRefusedError:
        """What is said of a setting that is refused; where it is for good, it is remembered."""
        if for_good:
            refused = (*self._provider.abilities.of(self.spec.name).refused, setting)
            self._provider.learn(self.spec.name, refused=refused)
            self.spec = replace(
                self.spec,
                accepts=self.spec.accepts.difference(refused),
                refused=frozenset(refused),
            )
        what = setting if for_good else f"this value of {setting}"
        return ModelSettingRefusedError(
            f"{WHO} does not take {what} for {self.spec.id}: change it in the settings.",
            extra={"refused": [setting], "model": self.spec.id},
        )


def _fails_inside(error: Exception) -> bool:
    return getattr(error, "status_code", None) == HTTPStatus.INTERNAL_SERVER_ERROR


def _without(body: Mapping[str, Any], members: Sequence[str]) -> dict[str, Any]:
    """The request without these members, or with what they are called elsewhere."""
    renamed = {name: RENAMED[name] for name in members if name in RENAMED}
    return {
        renamed.get(name, name): value
        for name, value in body.items()
        if name in renamed or name not in members
    }


def _checked(connection: Connection, response: httpx2.Response, data: bytes) -> Any:
    """An answer, or an event of a stream. Raises the SDK's `APIError` where it is an error."""
    value = parse_event(data)
    members = mapping(value)
    if fault := members.get("error") or (members.get("object") == "error" and members):
        message = str(mapping(fault).get("message", ""))
        raise connection.api_error(message, response.request, body=fault)
    return value


async def _read_up(received: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a reply, so that its connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_TIMEOUT):
            async for _ in received:
                pass
