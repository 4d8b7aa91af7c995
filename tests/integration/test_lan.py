"""What the API says of the local network, and to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.lan import service
from tests.support.server import ok, problem, running

pytestmark = pytest.mark.anyio

LAN = "/api/v1/admin/lan"
CERTIFICATE = "/api/v1/lan/certificate"
INSTANCE = "/api/v1/instance"
HERE = {"Host": "den.local:8443"}


async def test_in_the_local_network_the_machine_has_a_name_and_administrators_see_the_addresses(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "find_names", lambda: ("den.local", "den"))
    async with running(sqlite_url, tmp_path, lan=True) as server:
        server.parts.lan.open()
        async with server.account("ada") as ada, server.account("ben") as ben:
            view = ok(await ada.client.get(LAN))
            urls = {view["page"]["url"], *view["others"]}
            assert urls >= {"https://den.local:8443", "https://den:8443"}
            problem(await ben.client.get(LAN), 403, "forbidden")
            ok(await ben.client.get(INSTANCE, headers=HERE))


async def test_without_it_there_is_no_certificate_and_no_name(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_url, tmp_path) as server, server.account("ada") as ada:
        view = ok(await ada.client.get(LAN))
        assert (view["is_on"], view["page"], view["others"]) == (False, None, [])
        problem(await ada.client.get(CERTIFICATE), 404, "not-found")
        problem(await ada.client.get(INSTANCE, headers=HERE), 403, "unknown-host")
    assert not (tmp_path / "lan").exists()
