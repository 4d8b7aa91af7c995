#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Run the checks that a change has to pass.

    .ci/run [STEP...]

Every step runs, also after one that failed. The types are checked while the other steps run, and
reported when they are done. The exit status is 0 if all steps passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from scripts.launcher import ROOT, Checkout, say

NEEDED_TESTS = "postgres,browser,generated,door"
"""Groups of tests that fail if they cannot run: this machine has all that they need."""

CHROMIUM_PACKAGES = ("chromium-headless-shell", "chromium")
"""Debian's packages and their programs. The first one takes a third of the processor time."""

OTHER_CHROMIUMS = ("chromium-browser", "google-chrome")

PARALLEL_STEP = "types"
"""The step that runs at the same time as the others, because Pyright keeps a core busy for a
minute."""

WORKFLOW_OPTIONS = ("--offline", "--quiet", "--pedantic", "--strict-collection")

Command = Sequence[str]


def main() -> int:
    checkout = Checkout()
    steps = list_steps(checkout)
    parser = argparse.ArgumentParser(description="Check everything before a change lands.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(steps))
    chosen: list[str] = parser.parse_args().steps or list(steps)
    if unknown := set(chosen) - set(steps):
        parser.error(f"there is no step {', '.join(sorted(unknown))}: {', '.join(steps)}")

    os.chdir(ROOT)
    os.environ.setdefault("TEST_REQUIRE", NEEDED_TESTS)
    # Pyright looks up its newest version at each start; uv.lock says which one is meant.
    os.environ["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    checkout.keep_bytecode()
    if "tests" in chosen and "browser" in os.environ["TEST_REQUIRE"].split(","):
        install_chromium()

    failed: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        beside: Future[bool] | None = None
        if PARALLEL_STEP in chosen and len(chosen) > 1:
            chosen.remove(PARALLEL_STEP)
            beside = pool.submit(run_quietly, PARALLEL_STEP, steps[PARALLEL_STEP])
        for name in chosen:
            if name == "tests":
                print(f"\n==> failed so far: {', '.join(failed) or 'nothing'}")
            print(f"\n==> {name}", flush=True)
            started = time.monotonic()
            passed = run_all(steps[name])
            if not passed:
                failed.append(name)
            if name != "tests":  # they have a summary of their own
                report(name, passed=passed, seconds=time.monotonic() - started)
        if beside is not None and not beside.result():
            failed.append(PARALLEL_STEP)
    if failed:
        print(f"\n==> failed: {', '.join(failed)}")
    return 1 if failed else 0


def report(name: str, *, passed: bool, seconds: float) -> None:
    print(f"==> {name}: {'passed' if passed else 'FAILED'} in {seconds:.0f} s", flush=True)


def list_steps(checkout: Checkout) -> dict[str, list[Command]]:
    """Return the commands of each step."""

    def program(name: str, *arguments: str) -> Command:
        return (checkout.find_program(name), *arguments)

    return {
        "lock": [(checkout.find_uv(), "lock", "--check", "--quiet")],
        "format": [program("ruff", "format", "--check", ".")],
        "lint": [program("ruff", "check", ".")],
        "types": [program("mypy"), program("pyright")],
        "layers": [program("lint-imports")],
        "documentation": [program("python", "scripts/write_docs.py", "--check")],
        "workflows": [program("zizmor", *WORKFLOW_OPTIONS, ".github", ".pre-commit-config.yaml")],
        "tests": [program("python", "-I", "scripts/launcher.py", "test")],
    }


def run_all(commands: Sequence[Command]) -> bool:
    """Run commands at the same time, because each keeps one core busy; True if all succeed."""
    processes = [subprocess.Popen(command) for command in commands]
    statuses = [process.wait() for process in processes]
    return not any(statuses)


def run_quietly(name: str, commands: Sequence[Command]) -> bool:
    """Do the same while another step runs: print the output when all commands have ended."""
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for command in commands
    ]
    outputs = [process.communicate()[0].decode(errors="replace") for process in processes]
    passed = not any(process.returncode for process in processes)
    print(f"\n==> {name}", "".join(outputs), sep="\n", end="")
    report(name, passed=passed, seconds=time.monotonic() - started)
    return passed


def install_chromium() -> None:
    """Install Chromium for the tests of the page. Without it those tests fail, and say so."""
    if shutil.which(os.environ.get("TEST_CHROMIUM") or CHROMIUM_PACKAGES[0]):
        return
    is_missing = not any(map(shutil.which, (*CHROMIUM_PACKAGES, *OTHER_CHROMIUMS)))
    if shutil.which("apt-get"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        words = run_apt("update")
        for package in CHROMIUM_PACKAGES if is_missing else CHROMIUM_PACKAGES[:1]:
            words = run_apt("install", "-y", "--no-install-recommends", package)
            if not words:
                return
        if is_missing:
            print(*words.splitlines()[-5:], sep="\n", file=sys.stderr)
    if is_missing:
        say("no Chromium here: install it, or name one in TEST_CHROMIUM.")


def run_apt(*arguments: str) -> str:
    """Run apt-get; return its output if it failed, else an empty string."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    result = subprocess.run(
        [*as_root, "apt-get", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.stdout if result.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
