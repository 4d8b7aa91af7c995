"""An OpenAI-compatible server that refuses or cuts prompts longer than its window.

    async with WindowServer(4_096, overflow="vllm") as server: ...

Sources: `exceed_context_size_error` of llama.cpp's server, vLLM's `serving_engine.py`, the error of
llama-cpp-python's server, and what Ollama does in its runner: it keeps half of its window, and
reports the tokens that it kept.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer
from tests.fakes.openai_server import OpenAIServer, reply, usage
from tests.fakes.scripted_server import Answer, Request

Overflow = Literal["llama-cpp", "llama-cpp-python", "vllm", "nameless", "empty-stream", "cut"]
"""The reaction to a prompt that is longer than the window.

`nameless` refuses without a number. `empty-stream` ends a stream without an event, and gives its
reason to a request that is not streamed. `cut` answers to the rest of the prompt.
"""


class WindowServer(OpenAIServer):
    """Answers `Fine.` to prompts that fit. `refusals` counts the others.

    Args:
        window: Its context window in its own tokens.
        overflow: What it does beyond that.
        worth: Its tokens for one of o200k_base.
    """

    def __init__(self, window: int, *, overflow: Overflow = "llama-cpp", worth: float = 1) -> None:
        super().__init__()
        self.window, self.overflow, self.worth = window, overflow, worth
        self.refusals = 0

    def usual(self, request: Request) -> Answer:
        if not request.path.endswith("/chat/completions"):
            return super().usual(request)
        needed = self.count(request.body)
        if needed <= self.window:
            return self.accept(request.body, needed)
        self.refusals += 1
        if self.overflow == "cut":
            return reply("Fine.", used=usage(self.window // 2 + 2, 2))
        if self.overflow == "empty-stream" and request.body.get("stream"):
            return Answer(events=[])
        return Answer(400, body={"error": self.refuse(needed, request.body.get("max_tokens"))})

    def accept(self, body: Any, needed: int) -> Answer:  # for models that play
        """The answer to a prompt that fits."""
        text = "{}" if "response_format" in body else "Fine."
        return reply(text, used=usage(needed, 2))

    def count(self, body: Any) -> int:
        """The tokens of a request, its tools included."""
        count = get_tokenizer("o200k_base").count
        texts = [each.get("content") or "" for each in body["messages"]]
        calls = [each["tool_calls"] for each in body["messages"] if each.get("tool_calls")]
        rest = msgspec.json.encode([calls, body.get("tools", [])]).decode()
        total = sum(map(count, texts)) + MESSAGE_OVERHEAD * len(texts) + count(rest)
        return round(total * self.worth)

    def refuse(self, needed: int, longest: int | None) -> dict[str, Any]:
        """The words of the server."""
        match self.overflow:
            case "vllm":
                return {
                    "message": f"This model's maximum context length is {self.window} tokens. "
                    f"However, you requested {needed} tokens in the messages. Please reduce the "
                    "length of the messages.",
                    "type": "BadRequestError",
                    "code": 400,
                }
            case "llama-cpp-python":
                reserved = longest or 0
                return {
                    "message": f"This model's maximum context length is {self.window} tokens, "
                    f"however you requested {needed + reserved} tokens ({needed} in your prompt; "
                    f"{reserved} for the completion). Please reduce your prompt; or completion "
                    "length.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            case "nameless":
                return {"message": "The prompt is too long.", "type": "invalid_request_error"}
            case _:
                return {
                    "code": 400,
                    "message": "the request exceeds the available context size, try increasing it",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": needed,
                    "n_ctx": self.window,
                }
