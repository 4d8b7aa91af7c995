"""Faults of the index: its folder is gone, cut short, of another format, or garbage.

With Qdrant Edge, in the data folder: the folder is hurt while the server is stopped. With
`--qdrant` and PostgreSQL: a server behind a proxy that refuses, cuts off, is silent or slow.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.faults import Step, try_all
from scripts.torture.proxy import Mode, Proxy
from scripts.torture.report import Row

Hurt = Callable[[Path], None]


async def run(options: Options) -> list[Row]:
    if options.qdrant:
        return await _server(options)
    rows = [Row("index", "server: refused, slow, truncated", skipped="no --qdrant URL")]
    if options.kind != "sqlite":
        return rows
    async with campaign(options) as made:
        end = partial(_mend, made)
        faults = {name: (partial(_hurt, made, hurt), end) for name, hurt in FOLDER.items()}
        return [*await try_all(made, options, "index", faults), *rows]


async def _hurt(made: Campaign, hurt: Hurt) -> None:
    """Damage the folder while no process uses it."""
    await made.pause()
    await made.made.stop()
    hurt(made.made.data / "index")
    await made.made.open()
    made.may_act.set()


async def _mend(made: Campaign) -> None:
    """Delete the index if the server does not start with it, as an operator would."""
    if not made.made.servers[0].is_alive:
        shutil.rmtree(made.made.data / "index", ignore_errors=True)
        await made.made.open()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def _delete(folder: Path) -> None:
    shutil.rmtree(folder)


def _delete_half(folder: Path) -> None:
    for path in _files(folder)[::2]:
        path.unlink()


def _cut_short(folder: Path) -> None:
    for path in _files(folder):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])


def _garbage(folder: Path) -> None:
    draw = random.Random(7)
    for path in _files(folder):
        path.write_bytes(draw.randbytes(min(path.stat().st_size, 1_000_000)))


def _older_format(folder: Path) -> None:
    for path in [each for each in folder.iterdir() if each.is_dir()]:
        path.rename(path.with_suffix(".0"))


FOLDER: dict[str, Hurt] = {
    "folder deleted": _delete,
    "half of its files deleted": _delete_half,
    "files cut short": _cut_short,
    "files of garbage": _garbage,
    "folder of an older format": _older_format,
}


async def _server(options: Options) -> list[Row]:
    place = urlsplit(options.qdrant)
    async with Proxy((place.hostname or "127.0.0.1", place.port or 6333)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        async with campaign(
            replace(options, qdrant=url), qdrant_protocol="http", qdrant_timeout_seconds=2
        ) as made:
            return await try_all(made, options, "index", proxy_faults(proxy))


def proxy_faults(proxy: Proxy) -> dict[str, tuple[Step, Step]]:
    """Faults of a proxy."""

    async def become(mode: Mode, delay: float = 0.0, *, cut: bool = False) -> None:
        proxy.mode, proxy.delay = mode, delay
        if cut:
            await proxy.cut()

    end = partial(become, "through", cut=True)
    return {
        "connections cut": (partial(become, "through", cut=True), end),
        "connections refused": (partial(become, "refuse", cut=True), end),
        "silence": (partial(become, "silence"), end),
        "answers cut short": (partial(become, "truncate"), end),
        "0.2 s slower each way": (partial(become, "through", 0.2), end),
    }
