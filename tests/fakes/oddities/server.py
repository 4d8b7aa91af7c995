"""Servers with models that send oddities.

async with serve(FORMATS["openai"], rows) as server: ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.oddities.oddity import Oddity
from tests.fakes.oddities.wire_formats import WireFormat
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Request, ScriptedServer

NOT_FOUND = Answer(status=404, body={"detail": "Not Found"})


class OddServer(ScriptedServer):
    """Answers each request as the oddity that its model is named after."""

    def __init__(self, form: WireFormat, rows: Iterable[Oddity]) -> None:
        super().__init__()
        self.form = form
        self.rows = {row.name: row for row in rows}

    def config(self, **changes: Any) -> Any:
        """Return a configuration that leads here and has all models."""
        return super().config(**{"models": tuple(self.rows), **changes})  # type: ignore[misc]

    def usual(self, request: Request) -> Answer:
        """Return the answer of an oddity."""
        if request.method != "POST" or not self.form.is_reply(request):
            return NOT_FOUND
        return self.rows[self.form.model_of(request)].respond(request, self.form)


class OddOpenAIServer(OddServer, OpenAIServer):
    """Chat completions."""


class OddAnthropicServer(OddServer, AnthropicServer):
    """Anthropic's messages."""


class OddGeminiServer(OddServer, GeminiServer):
    """Gemini's `generateContent`."""


_SERVERS = {"openai": OddOpenAIServer, "anthropic": OddAnthropicServer, "gemini": OddGeminiServer}


def serve(form: WireFormat, rows: Iterable[Oddity]) -> OddServer:
    """Return a server of a format with one model for each oddity."""
    return _SERVERS[form.name](form, rows)
