"""One answer of each cause that an error names, as a turn meets it.

All the words that are known for a cause are in `tests.fakes.provider_answers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.oddities.oddity import ANTHROPIC, GEMINI, OPENAI, Oddity, Result
from tests.fakes.oddities.wire_formats import FormatName
from tests.fakes.provider_answers import ANSWERS
from tests.fakes.scripted_server import Answer


def answered(name: str, says: str, formats: Sequence[FormatName] = OPENAI) -> Oddity:
    """Return an answer by its name there. `says` is the next step that the error advises."""
    seen = ANSWERS[name]
    answer = Answer(status=seen.status, headers=seen.headers, body=seen.body)
    result = Result(error=seen.kind.slug, says=says)
    model = "-".join(name.replace(":", "").replace(",", "").split())
    return Oddity(model.lower(), name, formats=formats, answer=answer, result=result)


ERRORS = [
    answered("credit: OpenRouter", "no credit"),
    answered("credit: OpenAI", "no credit"),
    answered("credit: Anthropic", "no credit", ANTHROPIC),
    answered("rate limit: Groq", "Wait 6 minutes"),
    answered("rate limit: Gemini", "Wait 35 s", GEMINI),
    answered("filter: OpenRouter", "Change the text"),
    answered("region: Gemini", "region", GEMINI),
    answered("data policy: OpenRouter", "privacy settings"),
    answered("missing model: vLLM", "Check the model's name"),
    answered("address: FastAPI", "end in /v1"),
    answered("key: OpenAI", "Check the API key"),
    answered("loading: llama.cpp", "still loading"),
    answered("overloaded: Anthropic", "overloaded", ANTHROPIC),
    answered("server: Ollama", "server's log"),
]
