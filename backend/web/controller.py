"""The page at `/`, and its files."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, get
from litestar.params import FromPath

from backend.accounts.door import PUBLIC
from backend.errors import NotFoundError
from backend.web.files import PageFile, PageFiles

AnyRequest = Request[Any, Any, Any]

FOR_GOOD = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"
NOT_MODIFIED = 304


class PageController(Controller):
    """The page that comes with Talekeeper. It is a client of the API like any other."""

    tags = ("Page",)
    opt = {PUBLIC: True}  # noqa: RUF012  # Litestar's own declaration
    include_in_schema = False

    files = PageFiles()

    @get("/", operation_id="page", summary="The page")
    async def page(self, request: AnyRequest) -> Response[bytes]:
        """The page, for whoever opens the address in a browser."""
        index = self.files.index
        if request.headers.get("if-none-match") == index.tag:
            return Response(b"", status_code=NOT_MODIFIED, headers={"ETag": index.tag})
        return _answer(request, index, ASK_FIRST)

    @get("/page/{version:str}/{name:path}", operation_id="pageFile", summary="A file of the page")
    async def page_file(
        self, request: AnyRequest, version: FromPath[str], name: FromPath[str]
    ) -> Response[bytes]:
        """A script, a style sheet or a picture of the page's; it never changes under its address."""
        found = self.files.find(version, str(name).lstrip("/"))
        if found is None:
            raise NotFoundError("The page was updated: reload it.")
        return _answer(request, found, FOR_GOOD)


CONTROLLERS = (PageController,)


def _answer(request: AnyRequest, file: PageFile, caching: str) -> Response[bytes]:
    headers = {"Cache-Control": caching, "ETag": file.tag, "Vary": "Accept-Encoding"}
    zipped = "gzip" in request.headers.get("accept-encoding", "")
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(
        file.zipped if zipped else file.plain, media_type=file.media_type, headers=headers
    )
