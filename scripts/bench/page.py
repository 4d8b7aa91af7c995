"""Measure the page: bytes, requests, times until it is usable, and how smoothly it scrolls.

A server in this process, on SQLite in a temporary folder, is read by a headless Chromium over the
loopback: the sign-in, the library with 1,000 characters, and a chat with 10,000 messages, each with
an empty cache. Times are medians, in milliseconds since the navigation began.

Then it opens the long lists (the messages, the characters, the chats, and a lorebook with 5,000
entries), scrolls them to their end, and types into their search fields. Chromium's tracing measures
the tasks of the page's main thread: CPU and elapsed time, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from backend.core.logs import configure_logging
from backend.database.engine import Database
from backend.web.controller import FOLDER, INDEX, PageFiles
from scripts.bench.application import make_chat, make_settings, open_account, open_client, serve
from scripts.bench.data import CRD3, read_utterances
from scripts.bench.processes import PASSWORD, check, create_database
from scripts.bench.tables import get_p50_p95

NAME = "bench"
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
USABLE_SELECTORS = {
    "sign-in": "form button[type=submit]:not([disabled])",
    "library": "main a[href^='#/characters/'] img, main a[href^='#/characters/'] .face",
    "chat": "main article, main textarea:not([disabled])",
}
"""Elements that a view shows when it can be used, as CSS selectors."""

WATCH = """(selectors) => {
  window.usable = new Promise((resolve) => {
    const look = () => {
      const there = selectors.every((each) => document.querySelector(each));
      if (there) resolve(performance.now());
      else requestAnimationFrame(look);
    };
    look();
  });
}"""
READ = """async () => {
  const paints = performance.getEntriesByType("paint");
  const [document] = performance.getEntriesByType("navigation");
  return {
    "first paint": null,
    "first contentful paint": null,
    ...Object.fromEntries(paints.map((each) => [each.name.replaceAll("-", " "), each.startTime])),
    usable: await window.usable,
    files: [document, ...performance.getEntriesByType("resource")].map((each) => (
      { name: each.name, sent: each.transferSize, plain: each.decodedBodySize })),
    elements: window.document.querySelectorAll("*").length,
  };
}"""
SCROLL = """async ({ by, most }) => {
  const parts = [...document.querySelectorAll("main, main *")];
  const [box] = parts.filter((each) => /auto|scroll/.test(getComputedStyle(each).overflowY))
    .sort((a, b) => (b.scrollHeight - b.clientHeight) - (a.scrollHeight - a.clientHeight));
  const count = (what) => document.querySelectorAll(what).length;
  const isOver = () => {
    const messages = document.querySelectorAll("[role=feed] > *");
    const room = box.scrollHeight - box.clientHeight - box.scrollTop;
    if (!messages.length) return by < 0 ? box.scrollTop <= 0 : room <= 1;
    if (by < 0) return box.scrollTop <= 0 && messages[0].ariaPosInSet === "1";
    const { ariaPosInSet, ariaSetSize } = messages[messages.length - 1];
    return ariaPosInSet === ariaSetSize && room <= 1;
  };
  const found = { frames: [], waits: 0, elements: 0 };
  let before = await new Promise(requestAnimationFrame);
  while (found.frames.length < most && !isOver()) {
    const from = box.scrollTop;
    box.scrollTop += by;
    if (box.scrollTop === from) found.waits++;
    const now = await new Promise(requestAnimationFrame);
    found.frames.push(now - before);
    before = now;
    if (found.frames.length % 60 === 0) found.elements = Math.max(found.elements, count("*"));
  }
  return found;
}"""
SLOW_FRAMES = 180
SLOW_PIXELS = 80
"""Length and speed of a short scroll: 180 frames, 80 pixels a frame."""

FAST_PIXELS = 400
"""Pixels a frame while a whole chat or list is scrolled: 24,000 a second."""

MOST_FRAMES = 10_000
"""Frames after which the scroll of a list ends, if the list does not."""

SETTLED_MS = 400
"""Time after which delayed work of the page has run."""

LONG_FRAME_MS = 50


def get_file_kind(address: str) -> str:
    """Return "API" or the suffix of a file's address."""
    path = httpx.URL(address).path
    return "API" if path.startswith("/api/") else Path(path).suffix.removeprefix(".") or "html"


def print_file_sizes() -> None:
    """Print the numbers and the bytes of all of the page's files, by kind."""
    sizes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    pages = PageFiles()
    for name, file in ((INDEX, pages.index), *pages):
        path = FOLDER / name
        sizes[path.suffix.removeprefix(".")].append(
            (path.stat().st_size, len(file.plain), len(file.zipped))
        )
    print("All of the page's files")
    for kind, files in sorted(sizes.items()):
        source, served, zipped = (sum(each) for each in zip(*files, strict=True))
        figures = f"{source:>10} in the source{served:>10} served{zipped:>10} zipped"
        print(f"  {kind:<24}{len(files):>5} files{figures}")


async def visit(browser: Browser, url: str, place: str, address: str) -> dict[str, Any]:
    """Load one view with an empty cache; return its figures."""
    context = await browser.new_context(base_url=url)
    try:
        if place != "sign-in":
            await sign_in(context)
        page = await context.new_page()
        selectors = (
            USABLE_SELECTORS[place].split(", ") if place == "chat" else [USABLE_SELECTORS[place]]
        )
        await page.add_init_script(f"({WATCH})({selectors!r})")
        await page.goto(address)
        await page.evaluate("window.usable")
        await page.wait_for_load_state("networkidle")
        found: dict[str, Any] = await page.evaluate(READ)
        if place != "sign-in":
            pixels = -SLOW_PIXELS if place == "chat" else SLOW_PIXELS
            scrolled = await scroll(page, by=pixels, most=SLOW_FRAMES)
            found["frames"] = scrolled["frames"]
        return found
    finally:
        await context.close()


async def scroll(page: Page, *, by: int, most: int) -> dict[str, Any]:
    """Scroll by so many pixels a frame, to the end of a chat or for `most` frames.

    Returns the milliseconds between frames, the number of frames that had to wait for messages, and
    the most elements that were in the document.
    """
    found: dict[str, Any] = await page.evaluate(SCROLL, {"by": by, "most": most})
    return found


@dataclass(frozen=True)
class LongList:
    """A view with a long list. `pixels` a frame lead from its beginning to its end."""

    name: str
    address: str
    row: str
    pixels: int = FAST_PIXELS
    has_search: bool = True


class Task(NamedTuple):
    """A task of the page's main thread: its CPU and its elapsed time, in milliseconds."""

    cpu: float
    elapsed: float


async def measure_list(browser: Browser, url: str, place: LongList, runs: int) -> None:
    """Open a long list, scroll it to its end, and search in it, several times. Print the tasks."""
    tasks: dict[str, list[list[Task]]] = defaultdict(list)
    frames: list[float] = []
    waits = elements = 0
    for _ in range(runs):
        context = await browser.new_context(base_url=url)
        try:
            await sign_in(context)
            page = await context.new_page()
            await page.goto("/#/activity")
            await page.wait_for_load_state("networkidle")
            tasks["open"].append(await trace(browser, page, partial(open_list, page, place)))
            found: dict[str, Any] = {}

            async def scroll_to_end(page: Page = page, found: dict[str, Any] = found) -> None:
                found |= await scroll(page, by=place.pixels, most=MOST_FRAMES)

            tasks["scroll"].append(await trace(browser, page, scroll_to_end))
            frames += found["frames"]
            waits += found["waits"]
            elements = max(elements, found["elements"])
            if place.has_search:
                tasks["search"].append(await trace(browser, page, partial(search, page)))
        finally:
            await context.close()
    print(f"\n{place.name}")
    for name, each in tasks.items():
        print_tasks(name, each)
    p50, p95 = get_p50_p95(frames)
    long = sum(frame > LONG_FRAME_MS for frame in frames)
    print(f"  {len(frames)} frames of {FAST_PIXELS} pixels, {waits} waited for messages")
    print(f"  {p50} ms p50, {p95} p95, {max(frames):.0f} max; {long} over {LONG_FRAME_MS} ms")
    print(f"  {elements} elements, at most")


async def open_list(page: Page, place: LongList) -> None:
    """Go to the view of a long list, and wait until the list is complete."""
    await page.evaluate("address => { location.hash = address; }", place.address)
    await page.locator(place.row).last.wait_for(state="attached")
    await page.wait_for_load_state("networkidle")
    await page.wait_for_timeout(SETTLED_MS)


async def search(page: Page) -> None:
    """Type into the search field of a list."""
    await page.get_by_role("searchbox").last.press_sequentially("er 99", delay=60)
    await page.wait_for_timeout(SETTLED_MS)


async def trace(browser: Browser, page: Page, act: Callable[[], Awaitable[object]]) -> list[Task]:
    """Return the tasks of the page's main thread during `act`. A frame is one task.

    CPU depends less on the load of the machine than the time between frames. A virtual machine
    counts time that its host takes away as CPU of a task.
    """
    await browser.start_tracing(page=page, categories=["toplevel"])
    await act()
    events = json.loads(await browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        Task(event["tdur"] / 1000, event["dur"] / 1000)
        for event in events
        if "tdur" in event and (event["pid"], event["tid"]) in threads
    ]


def print_tasks(name: str, runs: Sequence[Sequence[Task]]) -> None:
    """Print the longest task of a median run and of all runs, and how many took too long."""
    longest = [max(task.cpu for task in tasks) for tasks in runs]
    slow = sum(task.cpu > LONG_FRAME_MS for tasks in runs for task in tasks)
    print(
        f"  {name:<8}longest task {statistics.median(longest):.1f} ms of CPU, "
        f"{max(longest):.1f} at most; {slow} over {LONG_FRAME_MS}; "
        f"{max(task.elapsed for tasks in runs for task in tasks):.0f} elapsed at most"
    )


async def sign_in(context: BrowserContext) -> None:
    """Open a session, so that the context sends its cookies."""
    body = {"username": NAME, "password": PASSWORD}
    answer = await context.request.post("/api/v1/sessions", data=body)
    if not answer.ok:
        raise SystemExit(await answer.text())


def print_visits(place: str, visits: list[dict[str, Any]]) -> None:
    """Print one view's figures."""
    first = visits[0]
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for file in first["files"]:
        kinds[get_file_kind(file["name"])].append(file)
    print(f"\n{place}: {len(first['files'])} requests, {first['elements']} elements")
    for kind, files in sorted(kinds.items()):
        plain, sent = (sum(each[name] for each in files) for name in ("plain", "sent"))
        print(f"  {kind:<24}{len(files):>5} requests{plain:>10} bytes{sent:>10} sent")
    for name in ("first paint", "first contentful paint", "usable"):
        times = [each[name] for each in visits if each[name] is not None]
        print(f"  {name:<24}{statistics.median(times) if times else float('nan'):>7.0f} ms")
    frames = [frame for each in visits for frame in each.get("frames", [])]
    if frames:
        p50, p95 = get_p50_p95(frames)
        print(f"  {'frames while scrolling':<24}{p50:>7} ms p50, {p95} p95, {max(frames):.0f} max")


async def measure(options: argparse.Namespace) -> None:
    """Make the data of the views, and measure them."""
    lines = read_utterances(options.data)
    async with create_database("sqlite") as url:
        with TemporaryDirectory(prefix="bench-") as folder:
            database = Database(url)
            account = await open_account(make_settings(url, Path(folder)), database, NAME)
            chat_id = await make_chat(database, account.identity, lines, options.messages)
            async with serve(account) as port:
                async with open_client(account, port) as api:
                    book_id = await fill_lists(api, lines, options)
                await visit_all(f"http://127.0.0.1:{port}", str(chat_id), book_id, options)


async def fill_lists(
    api: httpx.AsyncClient, lines: Sequence[tuple[str, str]], options: argparse.Namespace
) -> str:
    """Create characters, chats with them, and a lorebook. Returns the lorebook's id."""
    people: list[str] = []
    for number in range(options.characters):
        body = {
            "name": f"Character {number}",
            "first_mes": lines[number][1],
            "tags": [f"tag {number % 40}"],
        }
        people.append(check(await api.post("/characters", json=body))["id"])
    for number in range(options.chats):
        body = {"title": f"Chapter {number}", "character_ids": [people[number % len(people)]]}
        check(await api.post("/chats", json=body))
    entries = {
        str(number): {"uid": number, "key": [f"rumour {number}"], "content": lines[number][1]}
        for number in range(options.entries)
    }
    file = json.dumps({"entries": entries}).encode()
    imported = check(await api.post("/lorebooks/import", files={"file": ("long.json", file)}))
    book_id: str = imported["lorebook"]["id"]
    return book_id


async def visit_all(url: str, chat_id: str, book_id: str, options: argparse.Namespace) -> None:
    """Visit each view several times, scroll the chat and the lists, and print the figures."""
    lists = [
        LongList(
            f"{options.messages} messages, from the last to the first",
            f"#/chats/{chat_id}",
            "main article",
            pixels=-FAST_PIXELS,
            has_search=False,
        ),
        LongList(f"{options.characters} characters", "#/characters", ".people > li"),
        LongList(f"{options.chats} chats", "#/", ".talks > li"),
        LongList(f"{options.entries} entries", f"#/lorebooks/{book_id}", ".lore-entries > li"),
    ]
    places = {"sign-in": "/", "library": "/#/characters", "chat": f"/#/chats/{chat_id}"}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=options.chromium, args=list(CHROMIUM_FLAGS)
        )
        for place, address in places.items():
            visits = [await visit(browser, url, place, address) for _ in range(options.runs)]
            print_visits(place, visits)
        for each in lists:
            await measure_list(browser, url, each, options.runs)
        await browser.close()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench.py page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--characters", type=int, default=1_000)
    parser.add_argument("--chats", type=int, default=1_000)
    parser.add_argument("--entries", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_file_sizes()
    asyncio.run(measure(options))
