"""What processes take of the machine, with those that they started. Linux tells it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def resident_mib(pid: int | str = "self", field: str = "VmRSS") -> float:
    """What a process and those that it started hold in memory, in MiB.

    Pages of files that several of them have mapped count for each.
    """
    kilobytes = 0
    for each in _family(pid):
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    kilobytes += int(line.split()[1])
    return round(kilobytes / 1024, 1)


def cpu_seconds(pid: int | str = "self") -> float:
    """Processor time, user's and kernel's, of a process and those that it started."""
    ticks = 0
    for each in _family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(pid: int | str) -> list[str]:
    """A process, its children, and theirs: those that are running."""
    family = [str(pid)]
    for each in family:
        with suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                family += (thread / "children").read_text().split()
    return family
