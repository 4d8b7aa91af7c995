"""The page at `/`, and its files."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from litestar import Controller, HttpMethod, Request, Response, route
from litestar.params import FromPath
from litestar.status_codes import HTTP_304_NOT_MODIFIED

from backend.accounts.auth.middleware import PUBLIC
from backend.errors import NotFoundError

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
VERSION = b"{version}"
"""What stands in the index for the version, which is part of every other file's address."""

MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
"""What the page may consist of; a file of another kind is not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent. `tag` is its `ETag`: a weak one, the same for both forms."""

    media_type: str
    plain: bytes
    zipped: bytes
    tag: str


class PageFiles:
    """All files of the page, in memory, without the comments and blanks of scripts and styles.

    Each file is minified and packed when it is first asked for, 1 ms or so: together they would be
    a twentieth of a start, and the minifier takes 17 MiB of memory.

    The version is a digest over all of them. It stands in their addresses, so a browser may keep
    them for good, and a page that is open during an update never mixes old files with new ones
    that it has: it asks for its own version, and is told that it is gone.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        contents = dict(_read(folder))
        digest = hashlib.sha256()
        for name, data in sorted(contents.items()):
            digest.update(f"{name} {len(data)}\n".encode() + data)
        self.version = digest.hexdigest()[:12]
        document = contents.pop(INDEX).replace(VERSION, self.version.encode())
        self.index = _packed(INDEX, document)
        """The document at `/`, and nowhere else: it is the one that changes under its address."""
        self._contents = contents
        self._packed: dict[str, PageFile] = {}

    def __iter__(self) -> Iterator[tuple[str, PageFile]]:
        """Every file but the index, with its path."""
        return ((name, self._file(name)) for name in self._contents)

    def find(self, version: str, name: str) -> PageFile | None:
        """A file of this version by its path below the folder."""
        if version != self.version or name not in self._contents:
            return None
        return self._file(name)

    def _file(self, name: str) -> PageFile:
        if name not in self._packed:
            self._packed[name] = _packed(name, self._contents[name])
        return self._packed[name]


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.suffix in MEDIA_TYPES and path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


Slimming = Callable[[str], str]

_LEFT = re.compile(r"^/\*\*[\s\S]*?\*/\n|^//.*\n|/\* @__PURE__ \*/ ", re.MULTILINE)
"""Comments that the minifier leaves, on lines of their own, and its notes to bundlers."""


def _script(text: str) -> str:
    return _LEFT.sub("", _inside("script", text, attributes=" type=module"))


def _inside(tag: str, text: str, *, attributes: str = "") -> str:
    """A script or a style sheet minified, as what an element of a document holds.

    `minify_html` takes documents alone. What it does not understand it gives back as it is.
    """
    import minify_html  # noqa: PLC0415  # as large as all of SQLAlchemy, and seldom needed

    document = f"<{tag}{attributes}>{text}</{tag}>"
    minified = minify_html.minify(document, minify_css=True, minify_js=True, keep_closing_tags=True)
    return minified[minified.index(">") + 1 : minified.rindex("<")]


SLIMMER: Mapping[str, Slimming] = {
    ".css": lambda text: _inside("style", text),
    ".js": _script,
    ".json": lambda text: json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")),
}
"""What takes out what nothing but people read. Names stay as they are written."""


def _packed(name: str, data: bytes) -> PageFile:
    suffix = PurePosixPath(name).suffix
    if suffix in SLIMMER:
        data = SLIMMER[suffix](data.decode()).encode()
    return PageFile(
        media_type=MEDIA_TYPES[suffix],
        plain=data,
        zipped=gzip.compress(data, mtime=0),
        tag=f'W/"{hashlib.sha256(data).hexdigest()[:20]}"',
    )


AnyRequest = Request[Any, Any, Any]

FOR_GOOD = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"
METHODS = (HttpMethod.GET, HttpMethod.HEAD)
ZIPPED = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""What a browser says that takes a zipped answer: the name, and not that it is unwanted."""


class PageController(Controller):
    """The page that comes with Talekeeper. It is a client of the API like any other."""

    tags = ("Page",)
    opt = {PUBLIC: True}  # noqa: RUF012  # Litestar's own declaration
    include_in_schema = False

    files = PageFiles()

    @route("/", http_method=METHODS, operation_id="page", summary="The page")
    async def page(self, request: AnyRequest) -> Response[bytes]:
        """The page, for people who open the address in a browser."""
        return _answer(request, self.files.index, ASK_FIRST)

    @route(
        "/page/{version:str}/{name:path}",
        http_method=METHODS,
        operation_id="pageFile",
        summary="A file of the page",
    )
    async def page_file(
        self, request: AnyRequest, version: FromPath[str], name: FromPath[str]
    ) -> Response[bytes]:
        """A script, a style sheet or a picture; what is at an address never changes."""
        found = self.files.find(version, str(name).removeprefix("/"))
        if found is None:
            raise NotFoundError("The page was updated. Reload it.")
        return _answer(request, found, FOR_GOOD)


def _answer(request: AnyRequest, file: PageFile, caching: str) -> Response[bytes]:
    headers = {"Cache-Control": caching, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if _has(request, file.tag):
        return Response(b"", status_code=HTTP_304_NOT_MODIFIED, headers=headers)
    zipped = ZIPPED.search(request.headers.get("accept-encoding", "")) is not None
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(
        file.zipped if zipped else file.plain, media_type=file.media_type, headers=headers
    )


def _has(request: AnyRequest, tag: str) -> bool:
    """Whether the browser says that it has the file already, under whatever kind of tag."""
    given = request.headers.get("if-none-match", "").split(",")
    known = {each.strip().removeprefix("W/") for each in given}
    return not known.isdisjoint({"*", tag.removeprefix("W/")})
