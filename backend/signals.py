"""The signals by which people and service managers end a process, and the end of its console."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Generator

from backend.operating_system import STOP_SIGNALS, console_watched


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
