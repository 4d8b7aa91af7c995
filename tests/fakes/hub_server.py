"""The model downloads of Hugging Face's hub. Large files have a second address.

    async with HubServer({"model.onnx": b"..."}) as hub:
        await fetch_model(model, folder, report, hub=hub.url)

Whatever repository and revision is asked for has these files. Formats: what huggingface_hub, which
`snapshot_download` of a test asks here, makes of them; https://huggingface.co/docs/hub/api
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tests.fakes.scripted_server import Answer, Exchange, Request, ScriptedServer, encode_head

REVISION = "0123456789abcdef0123456789abcdef01234567"
LARGE = 10_000
"""Bytes from which on a file is kept apart from the repository, as with Git LFS."""


class HubServer(ScriptedServer):
    """Serves `files`, by path.

    `revision` is the commit of the branch `main`, and the only one that it has. Without
    `names_commit` and `names_digests` it leaves these headers out, as plain mirrors do.
    `breaks` are the bytes after which each of the next downloads of a large file is cut. Without
    `names_length` such a download looks complete, because its end is that of the connection.
    `altered` are files that are served with another content than the hub says.
    """

    usual_answer: ClassVar[Answer] = Answer(404, body={"error": "Entry not found"})

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__()
        self.files = dict(files)
        self.revision = REVISION
        self.names_commit = self.names_digests = self.names_length = True
        self.breaks: list[int] = []
        self.altered: set[str] = set()
        self.ranges: list[str] = []
        self.pace = asyncio.Event()
        self.pace.set()

    def usual(self, request: Request) -> Answer:
        if path := re.fullmatch(r"/[^/]+/[^/]+/resolve/([^/]+)/(.+)", request.path):
            if path[1] not in {"main", self.revision}:
                headers = {"X-Error-Code": "RevisionNotFound"}
                return Answer(404, headers=headers, body=b"Invalid rev id")
            return self._resolved(path[2])
        if re.fullmatch(r"/api/models/[^/]+/[^/]+/tree/[^/]+", request.path):
            return Answer(body=[self._listed(path) for path in self.files])
        if re.fullmatch(r"/api/models/[^/]+/[^/]+(/revision/[^/]+)?", request.path):
            names = [{"rfilename": path} for path in self.files]
            return Answer(body={"id": "Qdrant/tiny", "sha": self.revision, "siblings": names})
        for name, content in self.files.items():
            if request.path == f"/large/{_sha256(content)}":
                return self._large(request, name)
        return self.usual_answer

    async def respond(self, exchange: Exchange) -> bool:
        request, answer, _, writer = exchange
        body: Any = answer.body
        if request.method == "HEAD":
            length = {"content-length": str(len(body))} if isinstance(body, bytes) else {}
            writer.write(encode_head(answer.status, {**length, **answer.headers}))
            await writer.drain()
            return True
        if request.path.startswith("/large/"):
            await self.pace.wait()
            if self.breaks:
                length = {"content-length": str(len(body))} if self.names_length else {}
                cut = body[: self.breaks.pop(0)]
                writer.write(encode_head(answer.status, {**length, **answer.headers}) + cut)
                await writer.drain()
                return False
        return await super().respond(exchange)

    def _resolved(self, path: str) -> Answer:
        content = self.files.get(path)
        if content is None:
            return Answer(404, headers={"X-Error-Code": "EntryNotFound"}, body=b"Entry not found")
        headers = {"X-Repo-Commit": self.revision} if self.names_commit else {}
        if not self.names_digests:
            return Answer(headers=headers | {"ETag": '"5f1-18c"'}, body=self._content(path))
        if len(content) < LARGE:
            headers["ETag"] = f'"{_blob_id(content)}"'
            return Answer(headers=headers, body=self._content(path))
        headers |= {
            "X-Linked-Etag": f'"{_sha256(content)}"',
            "X-Linked-Size": str(len(content)),
            # Another host than the hub's, as it is there.
            "Location": f"{self.url.replace('127.0.0.1', 'localhost')}/large/{_sha256(content)}",
        }
        return Answer(302, headers=headers, body=b"")

    def _listed(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
        entry["oid"] = _blob_id(content)
        if len(content) >= LARGE:
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 132}
        return entry

    def _large(self, request: Request, path: str) -> Answer:
        content = self._content(path)
        asked = request.headers.get("range", "")
        self.ranges.append(asked)
        if (first := re.fullmatch(r"bytes=(\d+)-", asked)) is None:
            return Answer(body=content)
        start, end = int(first[1]), len(content)
        return Answer(206, {"Content-Range": f"bytes {start}-{end - 1}/{end}"}, content[start:])

    def _content(self, path: str) -> bytes:
        content = self.files[path]
        return content[:-1] + b"!" if path in self.altered else content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
