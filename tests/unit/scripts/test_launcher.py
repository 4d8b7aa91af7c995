"""The start of everything: from the shell, from Windows' command files, with and without uv."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.launcher import UV_VERSION, is_recent_uv, require_uv, resolve_data_folder
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]

RECENT_UV = """
case "$1 $2" in
"--version ") echo "uv 99.0.0 (a build)" ;;
"sync --check") [ -e "$UV_PROJECT_ENVIRONMENT/complete" ] ;;
"sync --quiet") echo "$UV_PYTHON: $*" >> "$UV_PROJECT_ENVIRONMENT/complete" ;;
esac
"""

TELL = 'echo "${0##*/} $* in $PWD"'

PYTHON = f'case $1 in -I*) exec "{sys.executable}" "$@" ;; esac; {TELL}'


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts in a folder with a space, and programs that print their arguments."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("bin/talekeeper", "Scripts/talekeeper.exe", "Scripts/python.exe"):
        write_program(root / ".venv" / name, TELL)
    write_program(root / ".venv" / "bin" / "python", PYTHON)
    write_program(root / "path" / "uv", RECENT_UV)
    return root


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the checkout from another folder, with only PATH in its environment."""
    return subprocess.run(
        [str(checkout / "scripts" / command[0]), *command[1:]],
        cwd=checkout / "path",
        env={"PATH": f"{checkout / 'path'}:{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def start_as_on_windows(checkout: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run the launcher as on Windows, in a new process group."""
    code = (
        "import launcher, pathlib, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "checkout = launcher.Checkout(pathlib.Path(sys.argv[1]), windows=True)\n"
        "sys.exit(launcher.main(sys.argv[2:], checkout))"
    )
    path = f"import sys; sys.path.insert(0, {str(checkout / 'scripts')!r})\n"
    return subprocess.Popen(
        [sys.executable, "-Ic", path + code, str(checkout), *arguments],
        env={"PATH": f"{checkout / 'path'}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_serving_makes_the_environment_once_and_runs_in_the_checkout(checkout: Path) -> None:
    first = run(checkout, "serve", "--port", "0", "--data-dir", "my tales")
    second = run(checkout, "serve")

    assert first.stdout == (
        f"talekeeper serve --port 0 --data-dir {checkout}/path/my tales in {checkout}\n"
    )
    assert first.stderr == "talekeeper: bringing .venv up to date\n"
    assert (second.stdout, second.stderr) == (f"talekeeper serve in {checkout}\n", "")
    made = (checkout / ".venv/complete").read_text()
    options = f"--project {checkout} --locked --inexact --no-default-groups"
    assert made == f": sync --quiet {options}\n"


def test_testing_takes_the_tests_group_and_one_process_more_than_cores(checkout: Path) -> None:
    result = run(checkout, "test", "-k", "a name")
    processes = (os.cpu_count() or 1) + 1
    assert result.stdout == (
        f"python -m pytest --numprocesses {processes} --dist worksteal -k a name in {checkout}\n"
    )
    assert "--no-default-groups --group test" in (checkout / ".venv/complete").read_text()


def test_a_script_runs_in_the_callers_folder_with_all_groups(checkout: Path) -> None:
    result = run(checkout, "_python", "a script.py", "--option")
    assert result.stdout == f"python a script.py --option in {checkout}/path\n"
    assert (checkout / ".venv/complete").read_text().endswith("--locked --inexact\n")


def test_a_new_environment_gets_the_python_that_was_found(checkout: Path) -> None:
    (checkout / ".venv/bin/python").unlink()
    result = run(checkout, "serve")
    assert "making the environment" in result.stderr
    python, _, _ = (checkout / ".venv/complete").read_text().partition(":")
    assert subprocess.run([python, "-c", ""], check=False).returncode == 0


def test_an_environment_that_cannot_be_made_is_explained(checkout: Path) -> None:
    write_program(checkout / "path/uv", '[ "$1" = --version ] && echo "uv 99.0.0"')
    result = run(checkout, "serve")
    assert result.returncode == 1
    assert "the environment could not be made" in result.stderr
    assert not result.stdout


def test_a_python_that_is_too_old_is_named(checkout: Path) -> None:
    tools = checkout / "tools"
    shutil.rmtree(checkout / ".venv")
    write_program(
        tools / "python3", 'case $1 in -c) printf " (python3 is 3.9.2.)" ;; *) exit 1; esac'
    )
    for name in ("sh", "dirname"):
        (tools / name).symlink_to(str(shutil.which(name)))

    result = subprocess.run(
        [str(checkout / "scripts/serve")],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert result.stderr == (
        "talekeeper: Python 3.11 or newer is needed, and is not on the PATH. (python3 is 3.9.2.)\n"
    )


def test_on_windows_programs_are_in_another_folder_and_their_status_is_returned(
    checkout: Path,
) -> None:
    write_program(checkout / ".venv/Scripts/talekeeper.exe", f"{TELL}; exit 3")
    with start_as_on_windows(checkout, "serve", "--port", "0") as process:
        assert process.communicate(timeout=PATIENCE)[0] == (
            f"talekeeper.exe serve --port 0 in {checkout}\n"
        )
        assert process.returncode == 3


def test_on_windows_an_interrupt_is_left_to_the_program(checkout: Path) -> None:
    write_program(
        checkout / ".venv/Scripts/talekeeper.exe",
        "trap 'exit 7' INT; echo ready; while :; do sleep 0.1; done",
    )

    with start_as_on_windows(checkout, "serve") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)

        assert process.wait(PATIENCE) == 7


@pytest.mark.parametrize("name", ["serve", "test"])
def test_the_command_files_of_windows_call_the_same_file(name: str) -> None:
    lines = (ROOT / f"scripts/{name}.cmd").read_text().splitlines()
    assert lines[0] == "@echo off"
    assert lines[-1] == f'py -3 -I "%~dp0launcher.py" {name} %*'


@pytest.mark.parametrize(
    ("words", "resolved"),
    [
        (["--data-dir", "tales"], ["--data-dir", "{here}/tales"]),
        (["--data-dir=tales", "--port=1"], ["--data-dir={here}/tales", "--port=1"]),
        (["--data", "tales"], ["--data", "{here}/tales"]),
        (["--data-dir", "/tales"], ["--data-dir", "/tales"]),
        (["--data-dir", "--data-dir"], ["--data-dir", "{here}/--data-dir"]),
        (["--port", "1", "--"], ["--port", "1", "--"]),
        (["--data-dir"], ["--data-dir"]),
    ],
)
def test_a_data_folder_is_relative_to_the_callers_folder(
    words: list[str], resolved: list[str]
) -> None:
    here = str(Path.cwd())
    assert resolve_data_folder(words) == [word.format(here=here) for word in resolved]


@pytest.mark.parametrize(
    ("answer", "is_recent"),
    [
        ("echo 'uv 0.13.0'", True),
        ("echo 'uv 1.0.2 (abc 2027-01-01)'", True),
        ("echo 'uv 0.9.30'", False),
        ("echo 'uv 0.12.9 (abc)'", False),
        ("echo 'pyenv: uv: command not found' >&2; exit 127", False),
        ("echo 'uv'", False),
        ("echo 'another 9.0.0'", False),
    ],
)
def test_only_a_uv_that_runs_and_is_recent_is_used(
    tmp_path: Path, answer: str, is_recent: bool
) -> None:
    write_program(tmp_path / "uv", answer)
    assert is_recent_uv(str(tmp_path / "uv")) is is_recent


def test_the_uv_that_is_installed_is_the_one_of_the_lock_file_with_its_hashes() -> None:
    requirement, *hashes = require_uv(ROOT / "uv.lock").split()
    assert requirement == f"uv=={UV_VERSION}"
    assert len(hashes) > 10
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
    wheels = (ROOT / "uv.lock").read_text()
    for system in ("win_amd64", "win_arm64", "macosx_11_0_arm64", "manylinux_2_28_aarch64"):
        assert f"uv-{UV_VERSION}-py3-none-{system}.whl" in wheels


def test_the_launcher_needs_the_standard_library_alone() -> None:
    text = (ROOT / "scripts/launcher.py").read_text()
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    assert set(imported) <= sys.stdlib_module_names


def test_the_versions_of_python_that_are_named_begin_with_the_one_that_is_needed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}"
    for version in named:
        assert f"python{version} " in (ROOT / "scripts/_launch").read_text()
