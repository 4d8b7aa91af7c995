"""The command `talekeeper compare`: compares archives, and accounts of this installation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from backend.accounts.auth.identity import Identity
from backend.operations.imports import CommandServices, open_with_api_key, open_with_password
from backend.transfer.archives.comparison import compare_archives
from backend.transfer.archives.service import ArchiveService
from backend.transfer.errors import TransferFileError

USER_PREFIX = "user:"


class ComparisonServices(CommandServices, Protocol):
    """The services that an account is opened and read with."""

    archives: ArchiveService


@dataclass(frozen=True, slots=True)
class AccountOpener:
    """Opens accounts as archives, with an API key or else with their passwords."""

    services: ComparisonServices
    token: str | None
    ask_password: Callable[[], str]
    show_progress: Callable[[int, int], None]

    async def open(self, name: str, stack: AsyncExitStack) -> BinaryIO:
        """Write the archive of an account, sealed, until the stack is closed.

        Raises `WrongCredentialsError` and `ForbiddenError`.
        """
        identity = await self._identify(name)

        async def report(done: int, total: int) -> None:
            self.show_progress(done, total)

        written = self.services.archives.write_temporary(identity, report)
        return cast("BinaryIO", await stack.enter_async_context(written))

    async def _identify(self, name: str) -> Identity:
        if self.token is not None:
            return await open_with_api_key(self.services, self.token, name)
        password = await asyncio.to_thread(self.ask_password)
        return await open_with_password(self.services, name, password)


def find_user(source: str) -> str | None:
    """Return the name of `user:NAME`, or None for a path."""
    return source.removeprefix(USER_PREFIX) if source.startswith(USER_PREFIX) else None


async def compare(accounts: AccountOpener | None, sources: Sequence[str]) -> list[str]:
    """Return a line for each difference of two sources: paths, or `user:NAME`.

    `accounts` is needed for users. Raises `TransferFileError` for a file that cannot be read, and
    the errors of `AccountOpener.open`.
    """
    async with AsyncExitStack() as stack:
        opened: list[BinaryIO] = []
        for source in sources:
            name = find_user(source)
            if name is None or accounts is None:
                opened.append(await _open_file(Path(source), stack))
            else:
                opened.append(await accounts.open(name, stack))
        first, second = opened
        return await asyncio.to_thread(
            lambda: [each.render() for each in compare_archives(first, second)]
        )


async def _open_file(path: Path, stack: AsyncExitStack) -> BinaryIO:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise TransferFileError(f"{path} cannot be read.") from error
    return stack.enter_context(file)
