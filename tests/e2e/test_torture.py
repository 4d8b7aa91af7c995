"""A short run of the harness of docs/explanation/reliability.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import Payload, Point, point_id
from backend.memory.indexing.documents import IndexDocument
from backend.vault.sealing import Sealer
from scripts.bench.pooler import find_pooler
from scripts.torture.checks import StoredMessage, check_chat
from scripts.torture.ledger import Choice, Deletion, Ledger, Line
from scripts.torture.model import TaggedModel
from scripts.torture.model_checks import (
    ChosenModel,
    check_servers,
    count_wrong,
    make_expected_vectors,
)
from scripts.torture.visitors import check_private
from tests.support.process import environment

ROOT = Path(__file__).parents[2]
CHAT = "a chat"
OUTPUTS = {"[R0000001]": "[R0000001] The rain has stopped."}


def torture(*arguments: str) -> dict[str, Any]:
    """Run a campaign and return its report. Limits are long, for a machine under load."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/torture.py", *arguments, "--slow", "8", "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == any(row["broken"] for row in told["rows"]), done.stderr
    return told


@pytest.mark.thorough
def test_two_kills_lose_nothing() -> None:
    (row,) = torture("--only", "kills", "--kills", "2")["rows"]
    assert row["broken"] == []
    assert row["figures"]["kills"] >= 2
    assert row["figures"]["messages"] > 0


@pytest.mark.thorough
@pytest.mark.pooler
@pytest.mark.skipif(find_pooler() is None, reason="pgbouncer is not installed")
def test_a_fleet_that_loses_servers_loses_no_line() -> None:
    options = ("--database", "postgres", "--players", "10", "--kills", "2")
    (row,) = torture("--only", "fleet", *options)["rows"]
    assert row["broken"] == []
    figures = row["figures"]
    assert figures["SIGKILL"] == figures["SIGTERM"] == 2  # a server and the worker
    assert figures["lines"] >= figures["players"] == 10
    assert figures["points"] > 0


def test_the_fleet_needs_a_postgresql_of_its_own() -> None:
    (row,) = torture("--only", "fleet")["rows"]
    assert (row["broken"], row["skipped"]) == ([], "it needs --database postgres")


@pytest.mark.thorough
def test_a_bystander_is_looked_after_beside_a_hostile_input() -> None:
    (row,) = torture("--only", "hostile", "--name", "idle connections")["rows"]
    assert row["broken"] == []
    assert "900 connections" in row["figures"]["answers"]


def test_a_fault_that_does_not_exist_cannot_be_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/torture.py", "--only", "floods"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice: 'floods'" in done.stderr


def stored(message_id: str, text: str, role: str = "user", parent: str | None = None) -> Any:
    """A message as `check_chat` looks at it."""
    row: Any = type("Row", (), {"id": message_id, "parent_id": parent, "role": role})()
    return StoredMessage(row, text)


@pytest.fixture
def ledger() -> Ledger:
    """A ledger with an acknowledged line and its reply."""
    line, reply = Line("a", CHAT, "[L0000001] Who is there?"), Line("b", CHAT, None)
    reply.marks = ["[R0000001]"]
    made = Ledger(lines={"a": line, "b": reply}, sent={"[L0000001] Who is there?"})
    made.answered[CHAT] = 1
    return made


LINE = stored("a", "[L0000001] Who is there?")
REPLY = stored("b", "[R0000001] The rain has stopped.", "assistant", "a")


def kinds(ledger: Ledger, *messages: Any) -> set[str]:
    """The promises that are broken, by their first word."""
    return {each.split(":")[0] for each in check_chat(ledger, CHAT, messages, OUTPUTS)}


def test_what_is_as_it_was_acknowledged_is_no_fault(ledger: Ledger) -> None:
    assert kinds(ledger, LINE, REPLY) == set()


def test_a_message_that_is_missing_is_lost(ledger: Ledger) -> None:
    assert kinds(ledger, LINE) == {"lost"}


def test_a_message_below_one_that_was_to_be_deleted_may_be_missing(ledger: Ledger) -> None:
    ledger.parents = {"a": None, "b": "a"}
    ledger.deletions.append(Deletion(CHAT, "a"))
    assert kinds(ledger) == kinds(ledger, LINE) == kinds(ledger, LINE, REPLY) == set()


def test_a_message_whose_deletion_was_acknowledged_may_not_come_back(ledger: Ledger) -> None:
    ledger.parents = {"a": None, "b": "a"}
    ledger.deletions.append(Deletion(CHAT, "b", outcome="ok"))
    assert kinds(ledger, LINE) == set()
    assert kinds(ledger, LINE, REPLY) == {"back"}


def test_a_line_that_is_there_twice_is_doubled(ledger: Ledger) -> None:
    again = stored("c", "[L0000001] Who is there?")
    assert kinds(ledger, LINE, REPLY, again) == {"doubled"}


def test_a_reply_that_lacks_a_word_is_changed(ledger: Ledger) -> None:
    shorter = stored("b", "[R0000001] The rain has", "assistant", "a")
    assert kinds(ledger, LINE, shorter) == {"changed"}


def test_what_a_broken_model_said_ten_million_times_was_said(ledger: Ledger) -> None:
    flood = stored("c", "x" * 5_000, "assistant", "a")
    continued = stored("b", "[R0000001] The rain has stopped." + "x" * 5_000, "assistant", "a")
    assert kinds(ledger, LINE, continued, flood) == set()
    assert kinds(ledger, LINE, REPLY, stored("c", "xxx", "assistant", "a")) == {"changed"}


def test_a_text_that_was_never_said_is_changed(ledger: Ledger) -> None:
    other = stored("a", "[L0000001] Who is where?")
    assert kinds(ledger, other, REPLY) == {"changed"}


def test_a_setting_has_the_value_that_was_acknowledged_and_each_of_requests_that_overlapped() -> (
    None
):
    choice = Choice([None])
    alone = choice.begin("a")
    assert choice.values == [None, "a"]
    choice.end(alone, "a", "ok")
    assert choice.values == ["a"]
    refused = choice.begin("b")
    choice.end(refused, "b", "refused")
    assert choice.values == ["a"]
    first, second = choice.begin("c"), choice.begin("d")
    choice.end(first, "c", "ok")
    choice.end(second, "d", "ok")
    assert choice.values == ["a", "c", "d"]
    choice.end(choice.begin("e"), "e", "unknown")
    assert choice.values == ["a", "c", "d", "e"]


@pytest.mark.anyio
async def test_a_vector_of_another_model_or_server_is_told(tmp_path: Path) -> None:
    owner, row = UUID(int=1), UUID(int=2)
    sealer = Sealer(owner, {1: bytes(32)}, user_key=bytes(32))
    line = IndexDocument(
        kind="message", source_id=row, container_id=row, text="The rain.", version=1
    )
    chosen = ChosenModel("0.a", "narrow-64", is_own=True)
    wanted = make_expected_vectors(sealer, [line], chosen, 256)
    payload = Payload(owner_id=owner, kind="message", container_id=row, source_id=row)
    index = await open_edge(tmp_path, "own-256-v1", 256)
    try:
        assert await count_wrong(index, wanted) == 1
        name = point_id("message", row)
        point = Point(id=name, payload=payload, dense={"dense": wanted[name]}, sparse={})
        await index.upsert([point])
        assert await count_wrong(index, wanted) == 0
        for server, model in (("0.b", "narrow-64"), ("0.a", "other-64"), ("0.a", "wide-300")):
            other = make_expected_vectors(sealer, [line], ChosenModel(server, model), 256)
            assert await count_wrong(index, other) == 1
    finally:
        await index.aclose()


@pytest.mark.anyio
async def test_a_line_that_went_to_anothers_server_is_told(ledger: Ledger) -> None:
    model = TaggedModel("canary")
    heard = {"model": "narrow-64", "input": ["[L0000001] Who is there?"]}
    await model.respond("/own/0.a/v1/embeddings", heard)
    assert check_servers(model, {"0.a": ledger}) == []
    assert check_private(model, {"[L0000001]"}) == []
    assert check_servers(model, {"0.a": Ledger()}) != []
    await model.respond("/v1/embeddings", heard)
    assert check_private(model, {"[L0000001]"}) != []
