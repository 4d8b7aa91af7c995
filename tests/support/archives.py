"""Archives of accounts: made over HTTP, and imported by a small driver."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from backend.accounts.auth.identity import Identity
from backend.errors import AppError
from backend.transfer.contracts import ImportContext, ImportOptions, StepResult
from backend.transfer.errors import TransferFileError
from tests.support.server import Account, Running
from tests.support.waiting import until


class ZipFiles:
    """The files of a zip in memory, as a `FileTree`."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))

    @property
    def name(self) -> str:
        return "archive.zip"

    def list_paths(self) -> Sequence[str]:
        return self._zip.namelist()

    def get_size(self, path: str) -> int:
        return self._zip.getinfo(path).file_size

    def open(self, path: str) -> BinaryIO:
        try:
            return io.BytesIO(self._zip.read(path))
        except (KeyError, zipfile.BadZipFile) as error:
            raise TransferFileError(f"{path} is damaged.") from error


async def make_archive(account: Account) -> bytes:
    """Make an archive of an account, and download it."""
    await account.post("/me/archive", status=202)

    async def is_made() -> bool:
        state: str = (await account.get("/me/archive/status"))["state"]
        assert state in {"making", "ready"}
        return state == "ready"

    await until(is_made)
    answer = await account.ask("GET", "/me/archive")
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.content


async def find_identity(server: Running, account: Account) -> Identity:
    """Return the identity of an account that is signed in to the server."""
    [token] = [each.value for each in account.client.cookies.jar if "session" in each.name]
    identity = await server.parts.sessions.authenticate(str(token), kind="session")
    assert identity is not None
    return identity


async def import_archive(
    server: Running,
    account: Account,
    data: bytes,
    *,
    copy: bool = False,
    stop_after: int | None = None,
) -> dict[str, StepResult]:
    """Run the steps of an import, and return the result of each file."""
    results: dict[str, StepResult] = {}

    async def report(_: int) -> None:
        pass

    context = ImportContext(
        identity=await find_identity(server, account),
        tree=ZipFiles(data),
        options=ImportOptions(copy=copy),
        report=report,
    )
    planner = server.parts.imports._runner._planners[0]
    assert planner.matches(context.tree)
    async for step in planner.plan(context):
        if stop_after is not None and len(results) == stop_after:
            return results
        try:
            results[step.path] = await step.run(context)
        except AppError as error:
            results[step.path] = StepResult(outcome="failed", detail=error.detail or "")
    if stop_after is None:
        assert planner.count(context.tree) == len(results)
    return results


def read_files(data: bytes) -> dict[str, bytes]:
    """Return the files of a zip, by path."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_files(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return target.getvalue()
