"""Packages of npm for tests, installed once into pytest's cache."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.core.operating_system import lock_file
from tests.support.waiting import PATIENCE

SOURCE = Path(__file__).parents[1] / "fixtures" / "npm"
PACKAGE_FILES = ("package.json", "package-lock.json")
MODULES = "node_modules"
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0")
INSTALL_SECONDS = 120


def install_packages(config: pytest.Config) -> Path:
    """Return a folder with the packages of the lock file.

    Skips the test if there is no npm, or if it cannot reach its registry.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    assert config.cache is not None
    version = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    folder = config.cache.mkdir(f"npm-{version[:12]}")
    with lock_file(folder / "lock", wait_seconds=2 * INSTALL_SECONDS):
        if not (folder / MODULES).is_dir():
            for name in PACKAGE_FILES:
                shutil.copy(SOURCE / name, folder)
            _install(npm, folder)
    return folder


def _install(npm: str, folder: Path) -> None:
    try:
        done = subprocess.run(
            [npm, "ci", *OPTIONS],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = "it takes too long"
    else:
        if done.returncode == 0:
            return
        problem = done.stderr.strip().partition("\n")[0]
    shutil.rmtree(folder / MODULES, ignore_errors=True)
    pytest.skip(f"npm cannot install the packages: {problem}")


async def run_script(folder: Path, name: str, *arguments: str) -> Any:
    """Run a script of the fixtures with the packages of a folder. Returns its output's JSON."""
    script = shutil.copy(SOURCE / name, folder)
    node = shutil.which("node")
    assert node is not None
    process = await asyncio.create_subprocess_exec(
        node,
        script,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)
