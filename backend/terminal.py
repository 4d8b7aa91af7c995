"""What commands ask and show in a terminal."""

from __future__ import annotations

import getpass
import io
import sys


def accept_any_text() -> None:
    """Print `?` for characters that the console can't show, such as those of a folder's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def ask_password() -> str:
    """A password: asked for without showing it, or a line of what is piped in."""
    is_asked = sys.stdin.isatty()
    return getpass.getpass("Password: ") if is_asked else sys.stdin.readline().rstrip("\n")


def show_progress(done: int, total: int) -> None:
    """Draw a progress bar; nothing where nobody would see it move."""
    if sys.stderr.isatty() and total:
        bar = "#" * (30 * done // total)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar:<30}] {done:,}/{total:,}{end}")
        sys.stderr.flush()
