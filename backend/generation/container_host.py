"""Containers: detection, and the name of the machine that a container runs on."""

from __future__ import annotations

import re
from pathlib import Path

HOST_NAME = "host.docker.internal"
"""The machine of a container. Docker Desktop and recent versions of Podman know the name; Docker on
Linux knows it if the container was started with `--add-host=host.docker.internal:host-gateway`.

Source: https://docs.docker.com/reference/cli/docker/container/run/#add-host
"""

_MARKS = (".dockerenv", "run/.containerenv")
"""Files that Docker and Podman put into a container."""

_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|lxc")
"""Parts of the control group of a container's first process, where it sees the whole path."""


def runs_in_container(root: Path = Path("/")) -> bool:
    """True if the file system at `root` is that of a container."""
    if any((root / mark).exists() for mark in _MARKS):
        return True
    try:
        group = (root / "proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return _CGROUP.search(group) is not None
