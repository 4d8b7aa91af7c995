"""The page at `/`, and its files."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from litestar import Controller, HttpMethod, Response, route
from litestar.params import FromPath

from backend.accounts.auth.middleware import PUBLIC
from backend.errors import NotFoundError
from backend.http.schemas import AnyRequest, is_current, make_unchanged
from backend.web.names import choose_exports, shorten_names

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
WORKER = "worker.js"
VERSION_PLACEHOLDER = b"{version}"
"""The placeholder for the version in the index and the service worker. The version is part of
every other file's address."""
LANGUAGES_PLACEHOLDER = b"{languages}"
"""The placeholder for the languages of translations in the index: `de pl`."""
TRANSLATION = re.compile(r"texts\.([\w-]+)\.json")

MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
"""The file types of the page. Other files are not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page. `tag` is its `ETag`: a weak one, the same for both forms."""

    media_type: str
    plain: bytes
    zipped: bytes
    tag: str


class PageFiles:
    """All files of the page, in memory, without the comments and spaces of scripts and styles.

    Each file is minified and compressed at its first request, which takes about 5 ms. All files at
    once would take a fifth of a start, and the libraries take 22 MiB of memory.

    The version is a digest of all files and part of their addresses, so that browsers can cache
    them forever. A page that is open during an update never mixes old and new files. It asks for
    its own version, and gets a not-found error.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        contents = dict(_read(folder))
        digest = hashlib.sha256()
        for name, data in sorted(contents.items()):
            digest.update(f"{name} {len(data)}\n".encode() + data)
        self.version = digest.hexdigest()[:12]
        languages = sorted(found[1] for name in contents if (found := TRANSLATION.fullmatch(name)))
        for name in (INDEX, WORKER):
            contents[name] = contents[name].replace(VERSION_PLACEHOLDER, self.version.encode())
        document = contents.pop(INDEX)
        document = document.replace(LANGUAGES_PLACEHOLDER, " ".join(languages).encode())
        self.index = _pack(INDEX, document)
        """The document at `/`. It and the worker change without a new address."""
        self._contents = contents
        scripts = {name: data.decode() for name, data in contents.items() if name.endswith(".js")}
        self.exports = choose_exports(scripts)
        """The short names of the exports of all scripts."""
        self._packed: dict[str, PageFile] = {}

    def __iter__(self) -> Iterator[tuple[str, PageFile]]:
        """Yield every file except the index, with its path."""
        return ((name, self._file(name)) for name in self._contents)

    @property
    def worker(self) -> PageFile:
        """The service worker. Browsers compare it byte by byte, so each version replaces it."""
        return self._file(WORKER)

    def find(self, version: str, name: str) -> PageFile | None:
        """Find a file of this version by its path below the folder."""
        if version != self.version or name not in self._contents:
            return None
        return self._file(name)

    def _file(self, name: str) -> PageFile:
        if name not in self._packed:
            data = self._contents[name]
            if minify := MINIFIERS.get(PurePosixPath(name).suffix):
                data = minify(data.decode(), self.exports).encode()
            self._packed[name] = _pack(name, data)
        return self._packed[name]


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.suffix in MEDIA_TYPES and path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


Minifier = Callable[[str, Mapping[str, str]], str]
"""Minifies a text. The mapping has the short names of the exports of all scripts."""

_LEFT_COMMENTS = re.compile(
    r"(?:(?<=;)\n)?^(?:/\*\*[\s\S]*?\*/|//.*)\n|/\* @__PURE__ \*/ ", re.MULTILINE
)
"""Comments on their own lines that the minifier leaves, and its notes to bundlers."""


def _minify_script(text: str, exports: Mapping[str, str]) -> str:
    bare = _LEFT_COMMENTS.sub("", _minify_element("script", text, attributes=" type=module"))
    return shorten_names(bare, exports)


def _minify_element(tag: str, text: str, *, attributes: str = "") -> str:
    """Minify a script or a style sheet inside an HTML element.

    `minify_html` accepts only documents. It returns unchanged code that it does not understand.
    """
    import minify_html  # noqa: PLC0415  # as large as all of SQLAlchemy, and seldom needed

    document = f"<{tag}{attributes}>{text}</{tag}>"
    minified = minify_html.minify(document, minify_css=True, minify_js=True, keep_closing_tags=True)
    return minified[minified.index(">") + 1 : minified.rindex("<")]


MINIFIERS: Mapping[str, Minifier] = {
    ".css": lambda text, _: _minify_element("style", text),
    ".js": _minify_script,
    ".json": lambda text, _: json.dumps(
        json.loads(text), ensure_ascii=False, separators=(",", ":")
    ),
}
"""Remove everything that only people read."""


def _pack(name: str, data: bytes) -> PageFile:
    return PageFile(
        media_type=MEDIA_TYPES[PurePosixPath(name).suffix],
        plain=data,
        zipped=gzip.compress(data, mtime=0),
        tag=f'W/"{hashlib.sha256(data).hexdigest()[:20]}"',
    )


CACHE_FOREVER = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
METHODS = (HttpMethod.GET, HttpMethod.HEAD)
ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""Matches an `Accept-Encoding` that accepts gzip."""


class PageController(Controller):
    """The page that comes with Talekeeper. It is a client of the API like any other."""

    tags = ("Page",)
    opt = {PUBLIC: True}  # noqa: RUF012  # Litestar's own declaration
    include_in_schema = False

    files = PageFiles()

    @route("/", http_method=METHODS, operation_id="page", summary="The page")
    async def page(self, request: AnyRequest) -> Response[bytes]:
        """The page, for people who open the address in a browser."""
        return _respond(request, self.files.index, REVALIDATE)

    @route(
        "/worker.js",
        http_method=METHODS,
        operation_id="pageWorker",
        summary="The page's service worker",
    )
    async def worker(self, request: AnyRequest) -> Response[bytes]:
        """The script that lets browsers store the page. At the root, it applies to the document."""
        return _respond(request, self.files.worker, REVALIDATE)

    @route(
        "/page/{version:str}/{name:path}",
        http_method=METHODS,
        operation_id="pageFile",
        summary="A file of the page",
    )
    async def page_file(
        self, request: AnyRequest, version: FromPath[str], name: FromPath[str]
    ) -> Response[bytes]:
        """A script, a style sheet or a picture. The file at an address never changes."""
        found = self.files.find(version, str(name).removeprefix("/"))
        if found is None:
            raise NotFoundError("The page was updated. Reload it.")
        return _respond(request, found, CACHE_FOREVER)


def _respond(request: AnyRequest, file: PageFile, caching: str) -> Response[bytes]:
    headers = {"Cache-Control": caching, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if is_current(request.headers.get("if-none-match"), file.tag):
        return make_unchanged(headers)
    zipped = ACCEPTS_GZIP.search(request.headers.get("accept-encoding", "")) is not None
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(
        file.zipped if zipped else file.plain, media_type=file.media_type, headers=headers
    )
