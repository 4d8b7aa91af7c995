"""The command `talekeeper import`: a folder, zip or file of this machine into one account."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import UUID

from backend.accounts.auth.identity import Identity, make_job_identity
from backend.accounts.auth.sessions import SessionService
from backend.accounts.errors import WrongCredentialsError
from backend.accounts.keys.keyring import open_sealer
from backend.accounts.repository import list_data_keys
from backend.accounts.service import AccountService
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import ForbiddenError
from backend.http.schemas import MAX_PAGE
from backend.transfer.contracts import ImportOptions
from backend.transfer.imports import ImportService, ReportFiles
from backend.transfer.schemas import ImportCounts, ImportResultView
from backend.transfer.trees import open_path

_OUTCOMES: Mapping[str, str] = {
    "imported": "imported",
    "already_there": "already there",
    "skipped": "skipped",
    "failed": "FAILED",
}


class CommandServices(Protocol):
    """The services that the command uses."""

    database: Database
    accounts: AccountService
    sessions: SessionService
    imports: ImportService


@dataclass(frozen=True, slots=True)
class ImportedPath:
    """The outcome of the command: lines for the terminal, and the counts of the import."""

    counts: ImportCounts
    has_finished: bool
    lines: list[str] = field(default_factory=list[str])

    @property
    def is_complete(self) -> bool:
        return self.has_finished and not self.counts.failed


async def open_with_password(services: CommandServices, name: str, password: str) -> Identity:
    """Open an account with its password. Raises `WrongCredentialsError`."""
    unlocked = await services.accounts.unlock(name, password, address="")
    async with services.database.read() as session:
        rows = await list_data_keys(session, unlocked.user.id)
    sealer = open_sealer(unlocked.user, rows, user_key=unlocked.current.key)
    return make_job_identity(unlocked.user, sealer, new_id())


async def open_with_api_key(services: CommandServices, token: str, name: str | None) -> Identity:
    """Open an account with an API key, which must be the named user's.

    Raises `WrongCredentialsError`, and `ForbiddenError` for a key that may only read.
    """
    identity = await services.sessions.authenticate(token, "api_key")
    if identity is None:
        raise WrongCredentialsError("The API key is wrong, or has ended.")
    if name is not None and services.accounts.name_of(identity).casefold() != name.casefold():
        raise WrongCredentialsError(f"The API key does not belong to {name}.")
    if not identity.may("chat"):
        raise ForbiddenError("The API key may only read. Make one with the scope `chat`.")
    return identity


async def import_path(
    services: CommandServices,
    identity: Identity,
    path: Path,
    options: ImportOptions,
    report: ReportFiles,
) -> ImportedPath:
    """Import a folder, a zip or a file. Raises `TransferFileError` if it cannot be read at all."""
    tree = await asyncio.to_thread(open_path, path)
    try:
        import_id = await services.imports.import_tree(identity, tree, options, report)
    finally:
        await asyncio.to_thread(tree.close)
    view = await services.imports.get(identity, import_id)
    lines = await _list_results(services.imports, identity, import_id)
    return ImportedPath(view.counts, view.state == "finished", lines)


async def _list_results(imports: ImportService, identity: Identity, import_id: UUID) -> list[str]:
    lines: list[str] = []
    after: UUID | None = None
    while True:
        page = await imports.list_results(
            identity, import_id, outcome=None, limit=MAX_PAGE, after=after
        )
        for item in page.items:
            lines += _render_result(item)
        if page.next is None:
            return lines
        after = UUID(page.next)


def _render_result(item: ImportResultView) -> list[str]:
    reason = f": {item.detail}" if item.detail else ""
    first = f"{_OUTCOMES[item.outcome]:<13} {item.path}{reason}"
    return [first, *(f"{'':<13} Note: {warning}" for warning in item.warnings)]
