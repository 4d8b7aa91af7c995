"""Functions that differ between operating systems.

If the system has no such function, a call does nothing, so that callers need no cases. The linter
keeps `fcntl`, `resource`, `os.fork` and the like out of all other modules.

Imports that helper processes do not need are in functions, because these processes start quickly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    import subprocess
import asyncio

_PRIVATE = 0o077
_CONSOLE_ENDS = (2, 5, 6)  # Windows' CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT and CTRL_SHUTDOWN_EVENT
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, of Linux's prctl(2)

_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")
"""Variables that helper processes inherit: the places of Python's modules, and the one that Windows
needs to start any program."""


def keep_files_private() -> None:
    """Let only the user read the files that this process writes.

    Windows has no such setting: files have the rights of the folder that they are made in.
    """
    if hasattr(os, "umask"):
        os.umask(_PRIVATE)


HAS_FILE_MODES = os.name == "posix"
"""False on Windows, where the rights of a folder decide who may read the files in it."""


def is_readable_by_others(path: Path) -> bool:
    """True if the file's mode lets other users read or write it. Windows has no such modes."""
    return HAS_FILE_MODES and bool(path.stat().st_mode & _PRIVATE)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Windows can't open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forbid_core_dumps() -> None:
    """Forbid core files: they would contain users' keys and texts in the clear."""
    _limit("RLIMIT_CORE", 0)


def limit_memory(size: int) -> bool:
    """Limit the address space of this process. False if the system refuses, as macOS does."""
    return _limit("RLIMIT_AS", size)


def _limit(name: str, value: int) -> bool:
    try:
        import resource  # noqa: PLC0415

        resource.setrlimit(getattr(resource, name), (value, value))
    except (ImportError, AttributeError, ValueError, OSError):
        return False
    return True


def lower_priority(niceness: int) -> None:
    """Let other processes run first. On Windows `start_connected` does so."""
    if hasattr(os, "nice"):
        os.nice(niceness)


def set_alarm(seconds: float) -> None:
    """End this process after so many seconds, even if it is deep in C; 0 clears the alarm.

    It ends processes that their parent has left behind. Windows has no alarms.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent ends. Only Linux can."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGBREAK")  # the last is Windows': Ctrl-Break
    if hasattr(signal, name)
)
"""The signals by which people and service managers end a process."""


def ignore_stop_signals() -> None:
    """Ignore these signals: they are meant for the process that is served."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def console_watched(receive: Callable[[int], object]) -> Generator[None]:
    """Call `receive` with SIGTERM, in another thread, when the console is closed.

    Only Windows does so. It waits until the block has ended, five seconds at most, and ends the
    process then.
    """
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415
        import threading  # noqa: PLC0415
        from ctypes import wintypes  # noqa: PLC0415

        ended = threading.Event()

        def handle(event: int) -> bool:
            if event not in _CONSOLE_ENDS:
                return False  # Ctrl-C and Ctrl-Break are signals
            receive(signal.SIGTERM)
            ended.wait()
            return True

        handler = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(handle)
        set_handler = ctypes.windll.kernel32.SetConsoleCtrlHandler
        set_handler(handler, wintypes.BOOL(1))
        try:
            yield
        finally:
            ended.set()
            set_handler(handler, wintypes.BOOL(0))
    else:
        yield


def allow_address_again(listener: socket.socket) -> None:
    """Let a server that restarts listen at once, where connections of the last one linger.

    On Windows that option lets two servers share a port, and another keeps others out.
    """
    import socket  # noqa: PLC0415

    exclusive: int | None = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    option = socket.SO_REUSEADDR if exclusive is None else exclusive
    listener.setsockopt(socket.SOL_SOCKET, option, 1)


def helper_command(module: str) -> list[str]:
    """Return the command that calls `main` of a module in another process.

    Not `-m`: runpy is slower to import than a helper's own modules.
    """
    return [sys.executable, "-P", "-c", f"from {module} import main; main()"]


def helper_options() -> dict[str, Any]:
    """Return options for starting a helper: almost no environment, so no keys and no passwords."""
    environment = {
        name: value
        for name in _PASSED_ON
        if (value := os.environ.get(name))  # Python's own, and no settings
    }
    options: dict[str, Any] = {"env": environment}
    if sys.platform == "win32":
        import subprocess  # noqa: PLC0415

        # A separate console, which is never shown: it gets no Ctrl-C.
        options["creationflags"] = subprocess.CREATE_NO_WINDOW
    return options


def start_connected(
    module: str,
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Start a helper of low priority that has a socket to this process.

    A socket is the only connection that every system can wait for with a timeout.

    Returns:
        The process, this end of the socket, and the helper's end: keep it open until the helper has
        sent something, because Windows hands it over only then.

    Raises:
        OSError: If the process can't be started.
    """
    import socket  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    options = helper_options()
    flags: int = options.get("creationflags", 0)
    stdin: int | None = None
    if sys.platform == "win32":
        flags |= subprocess.BELOW_NORMAL_PRIORITY_CLASS
        stdin = subprocess.PIPE
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(  # noqa: S603  our own module
            helper_command(module),
            stdin=theirs.fileno() if stdin is None else stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=options["env"],
            creationflags=flags,
        )
    except BaseException:
        ours.close()
        theirs.close()
        raise
    find_usage(process.pid)  # imports psutil for 30 ms, while the helper starts
    if sys.platform == "win32" and process.stdin:
        with contextlib.suppress(OSError), process.stdin as pipe:  # OSError: it has ended already
            pipe.write(theirs.share(process.pid))
    return process, ours, theirs


def find_usage(process_id: int) -> tuple[float, int] | None:
    """Return processor time in seconds and bytes of memory of a process; None if it has ended."""
    import psutil  # noqa: PLC0415

    try:
        process = psutil.Process(process_id)
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    return times.user + times.system, memory.rss


def connect_to_parent() -> socket.socket:
    """Return the socket that `start_connected` gave this process."""
    import socket  # noqa: PLC0415

    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


@contextlib.contextmanager
def stop_signals(receive: Callable[[int], None]) -> Generator[None]:
    """Call `receive` in the event loop with the number of each such signal, until the block ends.

    If the console is closed, the number is that of SIGTERM.
    Enter it in the main thread, where Python handles signals.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object = None) -> None:
        loop.call_soon_threadsafe(receive, number)  # which also wakes the loop

    before = {each: signal.signal(each, handle) for each in STOP_SIGNALS}
    try:
        with console_watched(handle):
            yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
