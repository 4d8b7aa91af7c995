"""OpenAI's SDKs for Python and JavaScript, which send the same calls to a server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.waiting import PATIENCE

NPM_PACKAGE = "openai@7.59.0"
SCRIPT = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True)
class SdkCall:
    """A call of a method, such as `create` of `chat.completions`.

    `values` are the members of the request, or the name of a model to retrieve.
    """

    route: str
    method: str = "create"
    values: Mapping[str, Any] | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class SdkResult:
    """The result of a call: a value, or the parts of a stream, or an error after some parts."""

    value: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parts: Sequence[Mapping[str, Any]] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    error: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        if not self.parts:
            text: str = self.value["choices"][0]["message"]["content"]
            return text
        choices = [part["choices"][0] for part in self.parts if part["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class OpenAISdk(Protocol):
    async def run(self, url: str, key: str, calls: Sequence[SdkCall]) -> list[SdkResult]:
        """Send the calls one after another. `url` is that of the server, without `/v1`."""
        ...


class PythonSdk:
    """The package `openai` of PyPI."""

    async def run(self, url: str, key: str, calls: Sequence[SdkCall]) -> list[SdkResult]:
        transport = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=PATIENCE)
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=transport
        ) as client:
            return [await _call(client, each) for each in calls]


async def _call(client: AsyncOpenAI, call: SdkCall) -> SdkResult:
    resource: Any = client
    for name in call.route.split("."):
        resource = getattr(resource, name)
    method = getattr(resource.with_raw_response, call.method)
    named = isinstance(call.values, str)
    positional = [call.values] if named else []
    members: Any = {} if named or call.values is None else call.values
    parts: list[dict[str, Any]] = []
    try:
        raw = await method(*positional, **members, extra_headers=dict(call.headers))
        found: Any = raw.parse()
        if not hasattr(found, "__aiter__") or call.method == "list":
            return SdkResult(value=found.to_dict(), headers=dict(raw.headers))
        async for part in found:
            parts.append(part.to_dict())  # noqa: PERF401  # an error leaves those before it
    except openai.APIError as error:
        shown = {name: getattr(error, name, None) for name in ("status_code", "code", "type")}
        return SdkResult(
            parts=parts,
            error={
                "kind": type(error).__name__,
                "status": shown["status_code"],
                "code": shown["code"],
                "type": shown["type"],
                "param": error.param,
                "message": error.message,
            },
        )
    return SdkResult(parts=parts, headers=dict(raw.headers))


@dataclass(frozen=True)
class NodeSdk:
    """The package `openai` of npm, in a folder where it is installed."""

    folder: Path

    async def run(self, url: str, key: str, calls: Sequence[SdkCall]) -> list[SdkResult]:
        sent = {
            "url": f"{url}/v1",
            "key": key,
            "calls": [
                {
                    "route": call.route,
                    "method": call.method,
                    "arguments": [] if call.values is None else [call.values],
                    "headers": dict(call.headers),
                }
                for call in calls
            ],
        }
        process = await asyncio.create_subprocess_exec(
            "node",
            SCRIPT.name,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        printed, faults = await process.communicate(json.dumps(sent).encode())
        assert process.returncode == 0, faults.decode()
        return [SdkResult(**each) for each in json.loads(printed)]


def install_node_sdk(cache: Path) -> NodeSdk:
    """Return the SDK in the folder `cache`, where it stays for later runs.

    Skips the test if npm is missing or cannot install it.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    folder = cache / NPM_PACKAGE
    if not folder.exists():
        being_made = cache / uuid4().hex
        being_made.mkdir(parents=True)
        (being_made / "package.json").write_text('{"private": true}')
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", NPM_PACKAGE]
        done = subprocess.run(command, cwd=being_made, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(being_made)
            pytest.skip(f"npm cannot install {NPM_PACKAGE}: {done.stderr[-200:]}")
        try:
            being_made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(being_made)
    script = folder / SCRIPT.name
    if not script.exists() or script.read_bytes() != SCRIPT.read_bytes():
        copy = folder / uuid4().hex
        shutil.copy(SCRIPT, copy)
        os.replace(copy, script)  # noqa: PTH105  # replaces an existing file on Windows too
    return NodeSdk(folder)
