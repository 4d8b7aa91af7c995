"""Tests of what operators see from outside: figures, alerts, the dashboard, and traces."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, reply
from tests.support.logs import Logged
from tests.support.models import asking
from tests.support.server import Account, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
async def vendor() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


Figures = dict[str, list[tuple[dict[str, str], float]]]


async def read_figures(account: Account) -> Figures:
    figures: Figures = {}
    answer = await account.client.get("/metrics")
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            figures.setdefault(sample.name, []).append((sample.labels, sample.value))
    return figures


def find(figures: Figures, name: str, **labels: str) -> float:
    """The sum of the values of a figure with these labels."""
    wanted = labels.items()
    return sum(value for found, value in figures.get(name, ()) if wanted <= found.items())


@pytest.mark.every_database
async def test_a_turn_and_the_queue_are_counted_and_everything_documented_exists(
    database_url: str, tmp_path: Path, vendor: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.operations.metrics.KEEP_SECONDS", 0.0)
    async with (
        running(database_url, tmp_path, **asking(vendor)) as server,
        server.account() as ada,
    ):
        before = await read_figures(ada)
        chat = await ada.new_chat()
        vendor.script(reply("Well met."))
        await ada.turn(chat["id"], text="Hello.")
        own = {"kind": "openai", "slug": "my-secret", "base_url": vendor.url, "api_key": API_KEY}
        await ada.post("/providers", {**own, "models": [{"name": MODEL}]}, 201)
        vendor.script(reply("Once more."))
        await ada.patch("/me/settings", {"model": f"my-secret/{MODEL}"})
        await ada.turn(chat["id"], text="Again.")

        async def read_when_indexed() -> Figures | None:
            figures = await read_figures(ada)
            return figures if "talekeeper_job_attempts_total" in figures else None

        figures = await until(read_when_indexed)

    ended = {"provider": "openai", "state": "completed"}
    turns = "talekeeper_turns_total"
    assert find(figures, turns, **ended) - find(before, turns, **ended) == 1
    ended["provider"] = "own"
    assert find(figures, turns, **ended) - find(before, turns, **ended) == 1
    first = "talekeeper_first_token_seconds_count"
    assert find(figures, first, provider="openai") >= 1
    assert find(figures, "talekeeper_database_up") == 1
    assert find(figures, "talekeeper_processes") == 1
    assert find(figures, "talekeeper_open_turns") == 0
    assert find(figures, "talekeeper_database_connections_max") >= 10

    known = {*figures, "up", "talekeeper_queue_jobs", "talekeeper_queue_age_seconds"}
    labels = {
        name: set[str]().union(*(each for each, _ in found)) for name, found in figures.items()
    }
    for expression in (*read_alerts(), *read_panels()):
        for name, chosen in re.findall(
            r"\b(up|(?:talekeeper|process)_\w+)(?:\{([^}]*)\})?", expression
        ):
            assert name in known, expression
            for label in re.findall(r"(\w+)=", chosen):
                assert label in {"job", *labels.get(name, {"kind", "state"})}, expression
    documented = re.findall(
        r"`((?:talekeeper|process)_\w+)`", (DOCS / "how-to/monitor.md").read_text()
    )
    assert len(documented) > 15
    families = known | {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    assert set(documented) <= families


async def test_without_its_database_a_process_reports_its_own_figures(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.operations.metrics.READ_SECONDS", 0.0)
    async with running(postgres_url, tmp_path) as server, server.account() as ada:
        figures = await read_figures(ada)
    assert find(figures, "talekeeper_database_up") == 0
    assert "talekeeper_processes" not in figures
    assert find(figures, "process_cpu_seconds_total") > 0


async def test_the_trace_of_a_request_is_logged_and_passed_on_to_the_model(
    sqlite_url: str, tmp_path: Path, vendor: OpenAIServer, logged: Logged
) -> None:
    async with (
        running(sqlite_url, tmp_path, **asking(vendor)) as server,
        server.account() as ada,
    ):
        chat = await ada.new_chat()
        for sent in (f"00-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", "of-another-form"):
            vendor.script(reply("Well met."))
            ada.client.headers["traceparent"] = sent
            await ada.turn(chat["id"], text="Hello.")
    passed = [request.headers.get("traceparent", "") for request in vendor.requests]
    version, trace, span, flags = passed[0].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert re.fullmatch("[0-9a-f]{16}", span)
    assert span != SPAN
    assert passed[1:] == ["", ""]
    lines = logged.lines("request.finished") + logged.lines("turn.finished")
    traced = [line for line in lines if "trace_id" in line]
    assert {line["event"] for line in traced} == {"request.finished", "turn.finished"}
    assert {line["trace_id"] for line in traced} == {TRACE}


def read_alerts() -> list[str]:
    text = (DOCS / "monitoring/prometheus-rules.yml").read_text()
    found = re.findall(r"expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", text)
    assert len(found) == text.count("- alert: ")
    return ["".join(each) for each in found]


def read_panels() -> list[str]:
    dashboard: Any = json.loads((DOCS / "monitoring/grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
