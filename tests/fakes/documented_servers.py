"""Fakes of servers that each implement OpenAI's chat completions differently.

Each is written from its server's documentation, whose address is in
`backend.generation.adapters.openai.dialects`: the members of a request that it knows, the form of
thoughts, usage and errors, how it continues a started reply, and where it counts tokens. It refuses
unknown members, so that a setting under a wrong name is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from backend.settings import ServerName
from tests.fakes.openai_server import (
    DONE,
    MODEL,
    OpenAIServer,
    chunk,
    completion,
    tool_call,
    usage,
    usage_chunk,
)
from tests.fakes.scripted_server import Answer, Event, Request

SAID, THOUGHT = " it rains.", "Rain?"
WINDOW = 12_288
VALUE = {"who": "Oswin"}

_STANDARD = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "temperature", "top_p", "seed", "stop"),
        *("presence_penalty", "frequency_penalty", "max_tokens", "reasoning_effort"),
        *("response_format", "tools", "tool_choice"),
    }
)
_DRY_AND_XTC = frozenset(
    {
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "xtc_probability", "xtc_threshold"),
    }
)


def _fault(message: str, **members: Any) -> Any:
    return {"error": {"message": message, **members}}


class DocumentedServer(OpenAIServer):
    """What the servers have in common: each says where it differs.

    `takes` are members of a request beside the standard's, `leaves` those of the standard that it
    does not know. `forms` are the types of `response_format` that it follows; `refuses_forms` says
    whether it refuses the others or writes prose. `counts` is its route for counting, with the
    members for text and tokens. `windows` are its routes that tell the window of its model, with
    their answers.
    """

    server: ClassVar[ServerName]
    takes: ClassVar[frozenset[str]] = frozenset()
    leaves: ClassVar[frozenset[str]] = frozenset()
    forms: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object"})
    refuses_forms: ClassVar[bool] = False
    calls_tools: ClassVar[bool] = True
    reasoning: ClassVar[str] = "reasoning_content"
    comment: ClassVar[str] = ""
    reports_usage: ClassVar[bool] = True
    counts: ClassVar[tuple[str, str, str] | None] = None
    windows: ClassVar[Mapping[str, Any]] = {}
    trouble: ClassVar[Answer] = Answer(
        status=404, body=_fault("model not found", type="not_found_error", code="model_not_found")
    )
    """The answer for an unknown model."""

    def __init__(self) -> None:
        super().__init__()
        self.aside |= {path: Answer(body=body) for path, body in self.windows.items()}

    def usual(self, request: Request) -> Answer:
        if self.counts and request.path == self.counts[0]:
            return self.count(request.body)
        if not request.path.endswith("/v1/chat/completions"):
            return Answer(status=404, body={"detail": "Not Found"})
        body = request.body
        if body["model"] == "no-such-model":
            return self.trouble
        if unknown := body.keys() - (_STANDARD - self.leaves) - self.takes:
            return self.refuse(min(unknown))
        form = body.get("response_format", {}).get("type", "text")
        if self.refuses_forms and form not in {*self.forms, "text"}:
            return self.refuse_form()
        return self.stream(body, form) if body.get("stream") else self.whole(body, form)

    def refuse(self, member: str) -> Answer:
        """An unknown member."""
        fault = _fault(f"Unknown parameter: '{member}'", type="invalid_request_error", code=None)
        return Answer(status=400, body=fault)

    def refuse_form(self) -> Answer:
        """A type of `response_format` that it does not have."""
        return Answer(status=400, body=_fault("This response_format type is unavailable now"))

    def count(self, body: Mapping[str, Any]) -> Answer:
        """Tokens of a text: one a word."""
        assert self.counts is not None
        _, member, answer = self.counts
        words = body[member].split()
        return Answer(body={answer: len(words), "tokens": list(range(len(words)))})

    def started(self, messages: list[Any]) -> bool:
        """True if it continues the last message."""
        return bool(messages[-1]["role"] == "assistant")

    def whole(self, body: Mapping[str, Any], form: str) -> Answer:
        """An answer that is not streamed."""
        if form in self.forms:
            return Answer(body=completion(json.dumps(VALUE)))
        if self.calls_tools and body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            calls = [tool_call(name, VALUE, call_id="call-1")]
            return Answer(body=completion(None, calls=calls, finish="tool_calls"))
        return Answer(body=completion(SAID))

    def stream(self, body: Mapping[str, Any], form: str) -> Answer:
        """A stream: a value or a call if one is asked for, otherwise a reply."""
        is_reply = form == "text" and not (self.calls_tools and body.get("tools"))
        return self.stream_reply(body) if is_reply else self.stream_value(body, form)

    def stream_value(self, body: Mapping[str, Any], form: str) -> Answer:
        """A value or a call in one chunk."""
        message = self.whole(body, form).body["choices"][0]["message"]
        calls = [{**call, "index": at} for at, call in enumerate(message.get("tool_calls", ()))]
        said: dict[str, Any] = {"tool_calls": calls} if calls else {"content": message["content"]}
        has_usage = self.reports_usage and body.get("stream_options", {}).get("include_usage")
        ending = self.ending(used=self.used() if has_usage else None)
        return Answer(events=[chunk(None, role="assistant", **said), *ending, DONE])

    def stream_reply(self, body: Mapping[str, Any]) -> Answer:
        """A reply, with a thought before it unless it was started."""
        is_started = self.started(body["messages"])
        said = SAID if is_started else f"Oswin:{SAID}"
        has_usage = self.reports_usage and body.get("stream_options", {}).get("include_usage")
        events = [
            f"{json.dumps(chunk(role='assistant', content=''))}{self.comment}",
            *(() if is_started else self.thoughts()),
            *(chunk(content=said[at : at + 4]) for at in range(0, len(said), 4)),
            *self.ending(used=self.used() if has_usage else None),
            DONE,
        ]
        return Answer(events=events)

    def thoughts(self) -> list[Event]:
        return [chunk(**{self.reasoning: THOUGHT})]

    def used(self) -> dict[str, Any]:
        return usage(12, 4)

    def ending(self, used: dict[str, Any] | None) -> list[Event]:
        return [chunk("stop"), *([usage_chunk(used)] if used else ())]


class LlamaCppServer(DocumentedServer):
    server = "llama-cpp"
    takes = _DRY_AND_XTC | {
        *("top_k", "min_p", "typical_p", "repeat_penalty", "logit_bias", "grammar")
    }
    trouble = Answer(
        status=400,
        body=_fault(
            "the request exceeds the available context size",
            code=400,
            type="exceed_context_size_error",
        ),
    )
    windows: ClassVar[Mapping[str, Any]] = {
        "/props": {"default_generation_settings": {"n_ctx": WINDOW}, "total_slots": 1}
    }

    def ending(self, used: dict[str, Any] | None) -> list[Event]:
        last = {**chunk("stop"), "timings": {"prompt_n": 12, "predicted_n": 4}}
        return [last, *([usage_chunk(used)] if used else ())]


class LlamaCppPythonServer(DocumentedServer):
    """It reports no usage in a stream, and fails at schemas."""

    server = "llama-cpp"
    takes = frozenset({"top_k", "min_p", "typical_p", "repeat_penalty", "logit_bias", "grammar"})
    takes |= _DRY_AND_XTC  # which it leaves unread
    forms = frozenset({"json_object"})
    calls_tools = False
    reports_usage = False
    counts = "/extras/tokenize/count", "input", "count"
    trouble = Answer(status=500, body=_fault("Internal Server Error", type="internal_server_error"))

    def usual(self, request: Request) -> Answer:
        body: dict[str, Any] = request.body or {}
        if body.get("response_format", {}).get("type") == "json_schema":
            return self.trouble
        return super().usual(request)

    def thoughts(self) -> list[Event]:
        return [chunk(content=f"<think>{THOUGHT}</think>")]


class KoboldCppServer(DocumentedServer):
    """It reports no usage in a stream, follows no schema, and thinks in its text."""

    server = "koboldcpp"
    takes = _DRY_AND_XTC | {
        *("top_k", "min_p", "top_a", "typical", "repetition_penalty", "logit_bias", "grammar")
    }
    forms = frozenset()
    reports_usage = False
    counts = "/api/extra/tokencount", "prompt", "value"
    windows: ClassVar[Mapping[str, Any]] = {"/api/extra/true_max_context_length": {"value": WINDOW}}
    trouble = Answer(
        status=503,
        body={"detail": {"msg": "Server is busy; please try again later.", "type": "busy"}},
    )

    def thoughts(self) -> list[Event]:
        return [chunk(content="<think>"), chunk(content=THOUGHT), chunk(content="</think>\n\n")]


class VLLMServer(DocumentedServer):
    server: ClassVar[ServerName] = "vllm"
    takes = frozenset(
        {
            *("top_k", "min_p", "repetition_penalty", "logit_bias", "structured_outputs"),
            *("continue_final_message", "add_generation_prompt"),
        }
    )
    reasoning = "reasoning"
    counts = "/tokenize", "prompt", "count"
    trouble = Answer(
        status=404,
        body={
            "object": "error",
            "message": "The model `no-such-model` does not exist.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        },
    )

    def usual(self, request: Request) -> Answer:
        body: dict[str, Any] = request.body or {}
        if body.get("continue_final_message") and body.get("add_generation_prompt", True):
            message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True"
            return Answer(status=400, body=_fault(message, type="BadRequestError", code=400))
        self._continues = bool(body.get("continue_final_message"))
        return super().usual(request)

    def started(self, messages: list[Any]) -> bool:
        return self._continues and super().started(messages)


class TabbyAPIServer(VLLMServer):
    """FastAPI's form of errors; schemas are no part of its `response_format`."""

    server = "tabbyapi"
    takes = _DRY_AND_XTC | {
        *("top_k", "min_p", "top_a", "typical_p", "repetition_penalty", "logit_bias"),
        *("grammar_string", "continue_final_message", "add_generation_prompt"),
    }
    forms = frozenset()
    counts = "/v1/token/encode", "text", "length"
    windows: ClassVar[Mapping[str, Any]] = {
        "/v1/model": {"id": MODEL, "object": "model", "parameters": {"max_seq_len": WINDOW}}
    }
    trouble = Answer(status=400, body={"detail": "Could not load the model no-such-model"})

    def refuse(self, member: str) -> Answer:
        detail = [{"type": "extra_forbidden", "loc": ["body", member], "msg": "Extra inputs"}]
        return Answer(status=422, body={"detail": detail})

    def thoughts(self) -> list[Event]:
        return [chunk(content=f"<think>{THOUGHT}</think>\n")]


class OllamaServer(DocumentedServer):
    server = "ollama"
    reasoning = "reasoning"
    windows: ClassVar[Mapping[str, Any]] = {
        "/api/ps": {"models": [{"name": MODEL, "model": MODEL, "context_length": WINDOW}]},
        "/api/show": {"parameters": "", "model_info": {"llama.context_length": 131_072}},
    }
    trouble = Answer(
        status=404,
        body=_fault('model "no-such-model" not found', type="not_found_error", code=None),
    )


class LMStudioServer(DocumentedServer):
    """Errors are a bare sentence; of forms it has the schema alone."""

    server = "lm-studio"
    takes = frozenset({"top_k", "min_p", "repeat_penalty", "logit_bias"})
    forms = frozenset({"json_schema"})
    refuses_forms = True
    windows: ClassVar[Mapping[str, Any]] = {
        "/api/v0/models": {
            "data": [{"id": MODEL, "max_context_length": 131_072, "loaded_context_length": WINDOW}]
        }
    }
    trouble = Answer(status=400, body={"error": "No models loaded."})

    def refuse(self, member: str) -> Answer:
        return Answer(status=400, body={"error": f"Unrecognized field '{member}'"})


class OpenRouterServer(DocumentedServer):
    """Comments while it waits; usage in a chunk that has a choice; errors in a 200."""

    server = "openrouter"
    takes = frozenset({"top_k", "min_p", "top_a", "repetition_penalty", "logit_bias"})
    reasoning = "reasoning"
    comment = "\n\n: OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING"
    trouble = Answer(body=_fault("Provider returned error", code=502, metadata={"raw": "overload"}))

    def ending(self, used: dict[str, Any] | None) -> list[Event]:
        last = {**chunk(content=""), "usage": {**used, "cost": 0.0001}} if used else chunk()
        return [chunk("stop"), last]


class OpenAIOwnServer(DocumentedServer):
    """OpenAI itself: its models show no thoughts, and the newer ones want another name."""

    server = "openai"
    takes = frozenset({"logit_bias", "max_completion_tokens"})
    leaves = frozenset({"max_tokens"})
    trouble = Answer(
        status=404,
        body=_fault("no such model", type="invalid_request_error", code="model_not_found"),
    )

    def refuse(self, member: str) -> Answer:
        message = f"Unsupported parameter: '{member}' is not supported with this model."
        fault = _fault(message, type="invalid_request_error", param=member)
        return Answer(status=400, body=fault)

    def thoughts(self) -> list[Event]:
        return []


class DeepSeekServer(DocumentedServer):
    """Comments while it waits, cached tokens under its own names, and no schemas."""

    server: ClassVar[ServerName] = "deepseek"
    leaves = frozenset({"seed"})
    forms = frozenset({"json_object"})
    refuses_forms = True
    comment = "\n\n: keep-alive"
    trouble = Answer(status=402, body=_fault("Insufficient Balance", type="unknown_error"))

    def started(self, messages: list[Any]) -> bool:
        return bool(super().started(messages) and messages[-1].get("prefix"))

    def used(self) -> dict[str, Any]:
        return {
            "prompt_tokens": 12,
            "completion_tokens": 4,
            "prompt_cache_hit_tokens": 8,
            "prompt_cache_miss_tokens": 4,
        }


class MistralServer(DeepSeekServer):
    """Thoughts are parts of the content; usage comes with the finish; unknown members are 422."""

    server = "mistral"
    takes = frozenset({"random_seed"})
    leaves = frozenset({"seed", "stream_options"})
    forms = frozenset({"json_schema", "json_object"})
    comment = ""
    trouble = Answer(status=429, body={"message": "Requests rate limit exceeded", "type": "x"})

    def refuse(self, member: str) -> Answer:
        fault = {"type": "extra_forbidden", "loc": ["body", member], "msg": "Extra inputs are not"}
        detail = {"object": "error", "message": {"detail": [fault]}, "type": "invalid_request"}
        return Answer(status=422, body=detail)

    def stream(self, body: Mapping[str, Any], form: str) -> Answer:
        return super().stream({**body, "stream_options": {"include_usage": True}}, form)

    def thoughts(self) -> list[Event]:
        thought = [{"type": "text", "text": THOUGHT}]
        return [chunk(content=[{"type": "thinking", "thinking": thought}])]

    def ending(self, used: dict[str, Any] | None) -> list[Event]:
        return [{**chunk("stop", content=""), "usage": used}]


SERVERS: tuple[type[DocumentedServer], ...] = (
    LlamaCppServer,
    LlamaCppPythonServer,
    KoboldCppServer,
    VLLMServer,
    TabbyAPIServer,
    OllamaServer,
    LMStudioServer,
    OpenRouterServer,
    OpenAIOwnServer,
    DeepSeekServer,
    MistralServer,
)
