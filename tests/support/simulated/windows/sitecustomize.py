"""Hide names that Windows lacks, in every process with this folder in PYTHONPATH.

Helper processes inherit PYTHONPATH. Other packages keep these modules: they have parts of their own
for Windows, and the standard library here can't do without. `msvcrt` locks files. What is not
simulated: paths, open files that can't be replaced, consoles, and how a socket is handed to a
helper.
"""

from __future__ import annotations

import builtins
import fcntl  # noqa: TID251  it locks for `locking`
import os
import select
import signal
import sys
from types import ModuleType
from typing import Any

HIDDEN_MODULES = {"fcntl", "resource", "pwd", "grp", "uvloop"}
HIDDEN_NAMES = {
    os: ("fork", "forkpty", "nice", "getuid", "geteuid", "getgid", "getegid", "killpg", "setsid"),
    signal: ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "setitimer", "ITIMER_REAL", "ITIMER_PROF"),
    select: ("poll",),
}

_import = builtins.__import__


class Msvcrt(ModuleType):
    """The part of Windows' module that Talekeeper uses. Only Talekeeper can import it."""

    LK_NBLCK = 2

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        """Lock a file, or raise `PermissionError` as Windows does."""
        assert (mode, size) == (self.LK_NBLCK, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(*error.args) from None


MSVCRT = Msvcrt("msvcrt")


def import_visible(
    name: str,
    globals: Any = None,  # noqa: A002  the names of `__import__`
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    """Import a module, unless it is hidden from the module that asks."""
    asks = (globals or {}).get("__name__") or ""  # pyright: ignore[reportUnknownVariableType]
    if asks.partition(".")[0] == "backend":
        if name in HIDDEN_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "msvcrt":
            return MSVCRT
    module = _import(name, globals, locals, fromlist, level)
    if (events := sys.modules.get("asyncio.unix_events")) and hasattr(events, "SelectorEventLoop"):
        events.SelectorEventLoop.add_signal_handler = refuse_handler
    return module


def refuse_handler(*_: object) -> None:
    """Refuse a signal handler, as the event loops of Windows do."""
    raise NotImplementedError


for module, hidden in HIDDEN_NAMES.items():
    for name in hidden:
        if hasattr(module, name):
            delattr(module, name)
builtins.__import__ = import_visible
