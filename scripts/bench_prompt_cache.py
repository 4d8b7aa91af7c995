#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How much of each prompt a provider has read before, in a story of 200 turns.

    scripts/bench_prompt_cache.py [--turns N] [--history TOKENS] [--data DIR] [--json]

A chat is played over HTTP against a server that speaks Anthropic's Messages API, whose replies are
lines of CRD3's transcripts (made-up ones where they are missing). What came in is counted as each
vendor counts what it reads from its cache instead of computing it:

    Anthropic   up to a block with `cache_control`, where an earlier request had the same beginning
                up to a marked block at most 20 blocks before; from 1,024 tokens on
    OpenAI      the longest beginning of an earlier request, in steps of 128 tokens from 1,024 on
    Gemini      the longest beginning of an earlier request, from 1,024 tokens on

Caches are taken to keep everything: the pace of a player decides whether they do. Beside it, a
window that drops the oldest message each turn: the same messages, as many of the newest as fit.
Tokens are o200k_base's.

Sources: https://platform.claude.com/docs/en/build-with-claude/prompt-caching,
https://platform.openai.com/docs/guides/prompt-caching, https://ai.google.dev/gemini-api/docs/caching
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn
from litestar import Litestar, post
from litestar.response import Stream

from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.generation.adapters.anthropic import AnthropicConfig
from backend.generation.registry import ModelRegistry
from backend.generation.tokens import get_tokenizer
from backend.settings import Settings
from scripts._bench import SHARED, client, made_up, open_account, serving, utterances
from scripts._bench_table import Row, new_database, print_rows

LEAST = 1_024
"""Tokens from which on vendors keep the beginning of a prompt."""

STEP = 128
LOOK_BACK = 20
"""Blocks before a marked one at which Anthropic looks for what it has kept."""

FRAME = 4
"""Tokens of a message beside its text."""


@dataclass(frozen=True)
class Block:
    """A piece of a prompt; `is_marked` where the API is told to keep what ends here."""

    role: str
    text: str
    is_marked: bool = False


@cache
def tokens_of(text: str) -> int:
    return get_tokenizer("o200k_base").count(text) + FRAME


def blocks_of(body: dict[str, Any]) -> list[Block]:
    """The blocks of a request, in the order in which the API reads them."""
    said = [("system", block) for block in body.get("system", ())]
    said += [(turn["role"], block) for turn in body["messages"] for block in turn["content"]]
    return [Block(role, block["text"], "cache_control" in block) for role, block in said]


def windowed(prompt: Sequence[Block], story: Sequence[Block], room: int) -> list[Block]:
    """The prompt with another history: as many of the newest lines of the story as fit."""
    said = {block.text for block in story}
    head = [block for block in prompt if block.role == "system"]
    rest = [block for block in prompt if block.role != "system" and block.text not in said]
    kept: list[Block] = []
    for line in reversed(story):
        room -= tokens_of(line.text)
        if room < 0:
            break
        kept.insert(0, line)
    if kept:
        kept[-1] = Block(kept[-1].role, kept[-1].text, is_marked=True)
    return [*head, *kept, *rest]


def beginnings(prompt: Sequence[Block]) -> Iterator[tuple[bytes, int]]:
    """For each block what tells the beginning up to it, and that beginning's tokens."""
    digest, total = hashlib.sha256(), 0
    for block in prompt:
        digest.update(f"{block.role}\0{block.text}\0".encode())
        total += tokens_of(block.text)
        yield digest.copy().digest(), total


def read_by_mark(prompts: Sequence[Sequence[Block]]) -> list[float]:
    """Of each prompt the tokens that Anthropic reads from its cache."""
    kept: set[bytes] = set()
    found: list[float] = []
    for prompt in prompts:
        ends = list(beginnings(prompt))
        marks = [place for place, block in enumerate(prompt) if block.is_marked]
        near = {at for mark in marks for at in range(max(0, mark - LOOK_BACK), mark + 1)}
        found.append(max((ends[at][1] for at in near if ends[at][0] in kept), default=0))
        kept |= {ends[mark][0] for mark in marks if ends[mark][1] >= LEAST}
    return found


def read_by_itself(prompts: Sequence[Sequence[Block]], step: int) -> list[float]:
    """The same of a vendor who keeps every beginning without being told."""
    kept: set[bytes] = set()
    found: list[float] = []
    for prompt in prompts:
        ends = list(beginnings(prompt))
        longest = max((total for digest, total in ends if digest in kept), default=0)
        found.append(longest // step * step if longest >= LEAST else 0)
        kept |= {digest for digest, _ in ends}
    return found


@asynccontextmanager
async def narrator(replies: Sequence[str]) -> AsyncGenerator[tuple[str, list[dict[str, Any]]]]:
    """A server that speaks Anthropic's API: its address, and the bodies that came in."""
    bodies: list[dict[str, Any]] = []

    @post("/v1/messages", status_code=200)
    async def messages(data: dict[str, Any]) -> Stream:
        text = replies[len(bodies) % len(replies)]
        bodies.append(data)
        events = (
            {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
            {"type": "content_block_delta", "index": 0, "delta": {"text": text}},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn"},
                "usage": {"output_tokens": 1},
            },
        )
        lines = (f"data: {json.dumps(event)}\n\n" for event in events)
        return Stream(lines, media_type="text/event-stream")

    app = Litestar([messages], logging_config=None)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", bodies
    server.should_exit = True
    await task


async def play(
    lines: Sequence[str], turns: int, history: int
) -> tuple[list[list[Block]], list[Block]]:
    """The prompts of a chat, and its lines."""
    story: list[Block] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with new_database("sqlite") as url, narrator(lines[1::2]) as (address, bodies):
            config = AnthropicConfig(api_key="none", models=("any",), base_url=address)
            database = Database(url)
            account = await open_account(
                Settings.model_validate({"data_dir": folder, "embedder": "none"}),
                database,
                "player",
                registry=ModelRegistry(anthropic=config),
            )
            async with serving(account.parts) as port, client(account, port) as api:
                card = {"name": "Oswin", "description": " ".join(lines[-40:]), "first_mes": "Hm."}
                made = await api.post("/characters", json=card)
                chat = await api.post("/chats", json={"character_ids": [made.json()["id"]]})
                path = f"/chats/{chat.json()['id']}"
                await api.patch(f"{path}/settings", json={"budgets": {"history": history}})
                for number in range(turns):
                    line = lines[2 * number % len(lines)]
                    answer = await api.post(f"{path}/turns", json={"text": line})
                    if answer.is_error:
                        raise SystemExit(answer.text)
                    story.append(Block("user", line))
                    story.append(Block("assistant", lines[(2 * number + 1) % len(lines)]))
            return [blocks_of(body) for body in bodies if body.get("stream")], story


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    spoken = utterances(options.data) if options.data.is_dir() else made_up()
    lines = list(dict.fromkeys(text for _, text in spoken if len(text.split()) > 3))
    mine, story = await play(lines, options.turns, options.history)
    told = [story[: 2 * number] for number in range(len(mine))]
    plain = [
        windowed(prompt, [*before, story[len(before)]], options.history)
        for prompt, before in zip(mine, told, strict=True)
    ]
    rows: list[Row] = []
    for what, prompts in (("Talekeeper", mine), ("window that drops the oldest", plain)):
        sent = sum(tokens_of(block.text) for prompt in prompts for block in prompt)
        for vendor, read in (
            ("Anthropic", read_by_mark(prompts)),
            ("OpenAI", read_by_itself(prompts, STEP)),
            ("Gemini", read_by_itself(prompts, 1)),
        ):
            share = round(100 * sum(read) / sent, 1)
            note = f"{sent / len(prompts):,.0f} tokens a prompt"
            rows.append(Row("sqlite", f"{what}: {vendor} reads again", share, None, "%", note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--history", type=int, default=8_000, help="tokens that history may take")
    parser.add_argument("--data", type=Path, default=SHARED / "crd3", help="transcripts of CRD3")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    configure_logging("error", "json")
    print_rows(asyncio.run(run(options)), as_json=options.json)


if __name__ == "__main__":
    main()
