"""Functions that differ between operating systems.

If a system lacks a function, the call does nothing. The linter forbids `fcntl`, `resource`,
`os.fork` and similar imports in all other modules.

Imports that helper processes do not need are inside functions, because helpers must start quickly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import socket
    import subprocess

_PRIVATE = 0o077
_CONSOLE_ENDS = (2, 5, 6)  # Windows' CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT and CTRL_SHUTDOWN_EVENT
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, of Linux's prctl(2)

_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")
"""Environment variables that helper processes inherit: Python's module paths, and the variable that
Windows needs to start a program."""


def keep_files_private() -> None:
    """Let only the user read the files of this process. On Windows their folder decides."""
    if hasattr(os, "umask"):
        os.umask(_PRIVATE)


HAS_FILE_MODES = os.name == "posix"
"""False on Windows, where the permissions of a folder apply to its files."""


def is_readable_by_others(path: Path) -> bool:
    """True if the file's mode lets other users read or write it. Always false on Windows."""
    return HAS_FILE_MODES and bool(path.stat().st_mode & _PRIVATE)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk. Windows cannot open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileLockedError(Exception):
    """The file is locked already, usually by another process."""


_LOCK_POLL_SECONDS = 0.05


def lock_file(path: Path, *, wait_seconds: float = 0.0) -> BinaryIO:
    """Lock a file until the result is closed. The file is created, and never deleted.

    Raises `FileLockedError` if it is still locked after `wait_seconds`.
    """
    # The library filelock imports asyncio, which takes as long as the whole start of an index.
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    deadline = time.monotonic() + wait_seconds
    while not _try_to_lock(file):
        if time.monotonic() >= deadline:
            file.close()
            raise FileLockedError(path)
        time.sleep(_LOCK_POLL_SECONDS)
    return file


def _try_to_lock(file: BinaryIO) -> bool:
    """Lock a file, and return True, unless it is locked already."""
    try:
        try:
            import fcntl  # noqa: PLC0415

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ModuleNotFoundError:
            import msvcrt  # noqa: PLC0415

            windows: Any = msvcrt
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):  # systems differ
        return False
    return True


def forbid_core_dumps() -> None:
    """Forbid core dumps, which would contain users' keys and decrypted texts."""
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
    """Lower the priority of this process. On Windows, `start_connected` does this."""
    if hasattr(os, "nice"):
        os.nice(niceness)


def set_alarm(seconds: float) -> None:
    """Kill this process after this many seconds, even during a call into C. 0 clears the alarm.

    It ends helpers of a killed parent. Windows has no alarms.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Linux only."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGBREAK")  # the last is Windows': Ctrl-Break
    if hasattr(signal, name)
)


def ignore_stop_signals() -> None:
    """Ignore these signals: they are meant for the process that is served."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def console_watched(receive: Callable[[int], object]) -> Generator[None]:
    """Call `receive` with SIGTERM, in another thread, when Windows closes the console.

    Windows ends the process after the block, or after five seconds.
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
    """Let a restarted server listen while connections of the previous one are still closing.

    On Windows this option would let two servers share a port, so another option is set.
    """
    import socket  # noqa: PLC0415

    exclusive: int | None = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    option = socket.SO_REUSEADDR if exclusive is None else exclusive
    listener.setsockopt(socket.SOL_SOCKET, option, 1)


def helper_command(module: str) -> list[str]:
    """Return the command that runs `main` of a module.

    It does not use `-m`, because importing runpy takes longer than importing a helper.
    """
    return [sys.executable, "-P", "-c", f"from {module} import main; main()"]


def helper_options() -> dict[str, Any]:
    """Return options for starting a helper, with an environment without keys and passwords."""
    environment = {
        name: value
        for name in _PASSED_ON
        if (value := os.environ.get(name))  # Python's variables, not settings
    }
    options: dict[str, Any] = {"env": environment}
    if sys.platform == "win32":
        import subprocess  # noqa: PLC0415

        # A separate, invisible console, so that Ctrl-C does not reach the helper.
        options["creationflags"] = subprocess.CREATE_NO_WINDOW
    return options


def start_connected(
    module: str,
) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """Start a helper process with low priority and a socket to this process.

    Only sockets can be read with a timeout on every system. Returns the process, this end of the
    socket, and the helper's end. Keep the latter open until the helper has sent something, because
    Windows transfers it only then. Raises `OSError`.
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
    find_usage(process.pid)  # importing psutil takes 30 ms, while the helper starts
    if sys.platform == "win32" and process.stdin:
        with contextlib.suppress(OSError), process.stdin as pipe:  # OSError: it has ended already
            pipe.write(theirs.share(process.pid))
    return process, ours, theirs


def find_usage(process_id: int) -> tuple[float, int] | None:
    """Return CPU seconds and memory bytes of a process, or None if it has ended."""
    import psutil  # noqa: PLC0415

    try:
        process = psutil.Process(process_id)
        times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    return times.user + times.system, memory.rss


def connect_to_parent() -> socket.socket:
    import socket  # noqa: PLC0415

    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


@contextlib.contextmanager
def stop_signals(receive: Callable[[int], None]) -> Generator[None]:
    """Call `receive` in the event loop with the number of each stop signal, until the block ends.

    Closing the console counts as SIGTERM. Enter the block in the main thread, because Python
    handles signals there.
    """
    import asyncio  # noqa: PLC0415

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
