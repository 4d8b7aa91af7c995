"""The page at `/`, and its files."""

from __future__ import annotations

import re
from typing import Any

from litestar import Controller, HttpMethod, Request, Response, route
from litestar.params import FromPath
from litestar.status_codes import HTTP_304_NOT_MODIFIED

from backend.accounts.middleware import PUBLIC
from backend.errors import NotFoundError
from backend.web.files import PageFile, PageFiles

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
        """The page, for whoever opens the address in a browser."""
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
            raise NotFoundError("The page was updated: reload it.")
        return _answer(request, found, FOR_GOOD)


CONTROLLERS = (PageController,)


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
