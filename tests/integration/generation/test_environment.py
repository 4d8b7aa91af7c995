"""The vendors' SDKs read the process's environment; Talekeeper's settings are its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backend.generation.model import Prompt, PromptMessage, TextPiece
from backend.generation.sampling import Sampling
from tests.integration.generation.conftest import Vendor

PROMPT = Prompt([PromptMessage("user", "Go on.")])
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def strange_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name, value in {
        "OPENAI_API_KEY": "sk-of-somebody-else",
        "OPENAI_BASE_URL": NOWHERE,
        "OPENAI_ORG_ID": "org-of-somebody-else",
        "OPENAI_PROJECT_ID": "project-of-somebody-else",
        "OPENAI_CUSTOM_HEADERS": "x-note: of-somebody-else\nAuthorization: of-somebody-else",
        "ANTHROPIC_API_KEY": "sk-ant-of-somebody-else",
        "ANTHROPIC_AUTH_TOKEN": "token-of-somebody-else",
        "ANTHROPIC_BASE_URL": NOWHERE,
        "ANTHROPIC_CUSTOM_HEADERS": "x-note: of-somebody-else",
        "GEMINI_API_KEY": "key-of-somebody-else",
        "GOOGLE_GEMINI_BASE_URL": NOWHERE,
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
        "GOOGLE_GENAI_API_VERSION": "v9",
        "GOOGLE_GENAI_CLIENT_MODE": "replay",
        "GOOGLE_CLOUD_PROJECT": "project-of-somebody-else",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.anyio
@pytest.mark.usefixtures("strange_environment")
async def test_the_environment_changes_neither_where_a_prompt_goes_nor_what_goes_along(
    vendor: Vendor,
) -> None:
    pieces = [piece async for piece in vendor.connect().stream(PROMPT, Sampling())]

    assert TextPiece("The rain") in pieces
    request = vendor.server.requests[0]
    assert vendor.key in " ".join(request.headers.values())
    assert "somebody-else" not in " ".join(request.headers.values())
    assert request.path in {
        "/v1/chat/completions",
        "/v1/messages",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
    }


@pytest.mark.anyio
@pytest.mark.usefixtures("strange_environment")
async def test_a_server_without_a_key_is_not_sent_the_environment_s(openai: Vendor) -> None:
    model = openai.connect(api_key=None)

    assert [piece async for piece in model.stream(PROMPT, Sampling())]
    assert "authorization" not in openai.server.requests[0].headers


@pytest.mark.anyio
async def test_nothing_about_this_machine_goes_along(vendor: Vendor) -> None:
    assert [piece async for piece in vendor.connect().stream(PROMPT, Sampling())]

    assert set(vendor.server.requests[0].headers) <= {
        *("host", "connection", "user-agent", "accept", "accept-encoding"),
        *("content-type", "content-length", "authorization", "x-goog-api-key"),
        *("x-api-key", "anthropic-version"),
    }


def test_slow_libraries_are_not_imported_before_a_model_is_asked() -> None:
    program = """
import sys
from backend.generation.client.provider import ServerConfig
from backend.generation.registry import KINDS, ModelRegistry
registry = ModelRegistry(
    gemini=ServerConfig(api_key="key", models=("gemini-2.5-flash",)),
    openai=KINDS["openai"].configure(
        None, base_url="http://127.0.0.1:9/v1", models=("any",)
    ),
    anthropic=ServerConfig(api_key="key", models=("any",)),
)
registry.get("gemini/gemini-2.5-flash"), registry.get("openai/any"), registry.get("demo")
slow = {"google.genai", "httpx2", "tiktoken", "splintr"} & set(sys.modules)
sys.exit(f"imported: {slow}" if slow else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
