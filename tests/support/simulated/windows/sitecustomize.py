"""Hide names that Windows lacks, in every process with this folder in PYTHONPATH.

Helper processes inherit PYTHONPATH. Other packages keep these modules: they have parts of their own
for Windows, and the standard library here can't do without. What is not simulated: paths, open
files that can't be replaced, consoles, and how a socket is handed to a helper.
"""

from __future__ import annotations

import builtins
import os
import select
import signal
import sys
from typing import Any

HIDDEN_MODULES = {"fcntl", "resource", "pwd", "grp", "uvloop"}
HIDDEN_NAMES = {
    os: ("fork", "forkpty", "nice", "getuid", "geteuid", "getgid", "getegid", "killpg", "setsid"),
    signal: ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "setitimer", "ITIMER_REAL", "ITIMER_PROF"),
    select: ("poll",),
}

_import = builtins.__import__


def import_visible(
    name: str,
    globals: Any = None,  # noqa: A002  the names of `__import__`
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    """Import a module, unless it is hidden from the module that asks."""
    asks = (globals or {}).get("__name__") or ""  # pyright: ignore[reportUnknownVariableType]
    if name in HIDDEN_MODULES and asks.partition(".")[0] == "backend":
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
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
