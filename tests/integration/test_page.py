"""Tests of the page's files, and of the local network."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path

import httpx
import pytest

from backend.lan import service
from backend.web.controller import FOLDER, MEDIA_TYPES, PageFiles
from tests.support.server import Running, ok, problem, running

pytestmark = pytest.mark.anyio

LARGEST = 300_000
"""Bytes of all scripts together, before compression."""

FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("*")
    if path.is_file() and path.name != "index.html"
)

IMPORT = re.compile(
    r"(?:^import\b[^;\"]*|^export [*{][^;\"]*|\bimport\(\s*)\"([^\"\n]+)\"", re.MULTILINE
)

ASSET = re.compile(r"new URL\(\s*[\"'`]([^\"'`$]+)[\"'`]\s*,\s*import\.meta\.url")
SHEET = re.compile(r"\bstyle\(\s*\"([\w-]+)\"")
ICON = re.compile(r"\bicon\(\s*\"([\w-]+)\"")
SPECIFIER = re.compile(r"\b(?:from|import\()\s*[\"`](\.{1,2}/[\w./-]+)[\"`]")
TEXT = re.compile(r"\bt\([\"`]([\w.]+)[\"`]")
CLASS = re.compile(r"\.([a-z]\w*)(?=[^{}]*\{)|(--[\w-]+)")
LINK = re.compile(r"(?:href|src)=\"([^\"]+)\"")


@pytest.fixture
async def client(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with running(sqlite_url, tmp_path) as server, browser(server) as client:
        yield client


def browser(server: Running) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False)


def read_source(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def read_served(name: str) -> bytes:
    files = PageFiles()
    found = files.find(files.version, name)
    assert found is not None
    return found.plain


@pytest.fixture(scope="module")
def base() -> str:
    return f"/page/{PageFiles().version}"


async def test_the_address_alone_gives_the_page(client: httpx.AsyncClient, base: str) -> None:
    answer = await client.get("/")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["vary"] == "Accept-Encoding"
    policy = answer.headers["content-security-policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "connect-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "trusted-types worker" in policy
    assert "{version}" not in answer.text
    assert "set-cookie" not in answer.headers
    links: list[str] = LINK.findall(answer.text)
    assert f"{base}/main.js" in links
    for link in links:
        assert link.startswith(f"{base}/")
        assert (await client.get(link)).status_code == 200, link


async def test_the_worker_is_at_the_root_and_changes_with_the_version(
    client: httpx.AsyncClient, base: str
) -> None:
    answer = await client.get("/worker.js")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert base.removeprefix("/page/") in answer.text
    assert "{version}" not in answer.text


async def test_cached_files_are_not_sent_again(client: httpx.AsyncClient, base: str) -> None:
    for path in ("/", f"{base}/main.js"):
        first = await client.get(path)
        tag = first.headers["etag"]
        for given in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            again = await client.get(path, headers={"If-None-Match": given})
            assert again.status_code == 304
            assert again.content == b""
            for header in ("etag", "cache-control", "vary", "content-security-policy"):
                assert again.headers[header] == first.headers[header]
        other = await client.get(path, headers={"If-None-Match": '"other"'})
        assert other.content == first.content


async def test_files_come_plain_or_zipped_and_are_kept_for_good(
    client: httpx.AsyncClient, base: str
) -> None:
    for name in FILES:
        path = f"{base}/{name}"
        zipped = await client.get(path, headers={"Accept-Encoding": "br, gzip;q=0.5"})
        plain = await client.get(path, headers={"Accept-Encoding": "gzip;q=0, br"})

        assert zipped.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        for answer in (zipped, plain):
            assert answer.status_code == 200
            assert answer.content == read_served(name)
            media_type, _, charset = answer.headers["content-type"].partition("; ")
            assert media_type == MEDIA_TYPES[Path(name).suffix]
            assert charset == ("charset=utf-8" if media_type.startswith("text/") else "")
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["vary"] == "Accept-Encoding"
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_files_lose_what_only_people_read_and_nothing_else() -> None:
    for name in FILES:
        if name.endswith(".png"):
            assert read_served(name) == (FOLDER / name).read_bytes()
            continue
        out, written = read_served(name).decode(), read_source(name)
        bare = re.sub(r"/\*.*?\*/", "", written, flags=re.DOTALL)
        match Path(name).suffix:
            case ".js":
                assert len(out) < 0.97 * len(written), f"{name} was not understood"
                assert set(SPECIFIER.findall(out)) == set(SPECIFIER.findall(bare)), name
                quoted = set(re.findall(r"[\"`]([\w.]+)[\"`]", out))
                # The names of functions are shortened, the texts that they ask for are not.
                assert set(TEXT.findall(bare)) <= quoted, name
                assert not re.search(r"^/\*|^//|/\* ?@", out, re.MULTILINE), name
            case ".css":
                assert set(CLASS.findall(out)) == set(CLASS.findall(bare)), name
                assert "/*" not in out
            case ".json":
                assert json.loads(out) == json.loads(written)
                assert "\n" not in out
            case _:
                assert out == written


async def test_a_head_request_gets_headers_only(client: httpx.AsyncClient, base: str) -> None:
    for path in ("/", f"{base}/main.js"):
        head, whole = await client.head(path), await client.get(path)
        assert head.status_code == 200
        assert head.content == b""
        for header in ("content-type", "content-length", "etag", "cache-control"):
            assert head.headers[header] == whole.headers[header]


async def test_nothing_else_is_given_out(client: httpx.AsyncClient, base: str) -> None:
    for path in (
        "/page/000000000000/main.js",
        f"{base}",
        f"{base}/",
        f"{base}/core",
        f"{base}/none.js",
        f"{base}/MAIN.JS",
        f"{base}/index.html",
        "/index.html",
        f"{base}/..%2ffiles.py",
        f"{base}/%2e%2e/files.py",
        f"{base}/%2e%2e%2ffiles.py",
        f"{base}/..%5cfiles.py",
        f"{base}/core/%2e%2e/main.js",
        f"{base}/%2fetc%2fpasswd",
        f"{base}/main.js%00",
        f"{base}/.env",
        f"{base}/.js",
        f"{base}/files.py",
    ):
        answer = await client.get(path)
        assert answer.status_code == 404, path
        problem(answer, 404, "not-found")
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_whatever_a_module_refers_to_is_there(name: str) -> None:
    text = read_source(name)
    folder = posixpath.dirname(name)
    for target in IMPORT.findall(text):
        assert target.startswith(("./", "../")), target
    for target in (*IMPORT.findall(text), *ASSET.findall(text)):
        assert posixpath.normpath(posixpath.join(folder, target)) in FILES, target
    for sheet in SHEET.findall(text):
        assert f"style/{sheet}.css" in FILES
    icons = set(re.findall(r"<symbol[^>]* id=\"([\w-]+)\"", read_source("icons.svg")))
    assert set(ICON.findall(text)) <= icons


def test_nothing_of_the_page_comes_from_elsewhere() -> None:
    for name in ("index.html", *(each for each in FILES if not each.endswith(".png"))):
        text = read_source(name)
        for target in (
            *IMPORT.findall(text),
            *LINK.findall(text),
            *re.findall(r"url\(([^)]+)", text),
        ):
            assert not re.match(r"[\"']?(?:[a-z]+:)?//", target), (name, target)


def test_no_style_makes_the_browser_restyle_a_whole_list_for_each_new_row() -> None:
    """A selector with `:has()` ends with it, or with a class or an attribute.

    With `body:has(.a) > *`, browsers restyle the whole document when a row is added.
    """
    has = re.compile(r":has\((?:[^()]|\([^()]*\))*\)\S*[ >+~]+([^,\s][^,]*)")
    for name in ("base", "parts", "shell", "chat", "library", "lore"):
        text = re.sub(r"/\*.*?\*/", "", read_source(f"style/{name}.css"), flags=re.DOTALL)
        for selector in re.findall(r"[^{};]*(?={)", text):
            for styled in has.findall(selector):
                assert re.search(r"(\.(?!icon\b)[\w-]+|\])\s*$", styled), (name, selector)


def test_the_page_is_small() -> None:
    sizes = {name: len(read_served(name)) for name in FILES if name.endswith(".js")}
    assert sum(sizes.values()) < LARGEST, sizes


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
