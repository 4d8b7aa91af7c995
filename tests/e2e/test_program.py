"""Talekeeper as an installed program: its wheel, in an environment that is no checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import httpx
import pytest

from tests.support.process import environment
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"

PROGRAM = """
import sys
from importlib.metadata import entry_points
[talekeeper] = entry_points(group="console_scripts", name="talekeeper")
sys.exit(talekeeper.load()())
"""

USER_FOLDERS = {
    "linux": ".local/share/talekeeper",
    "darwin": "Library/Application Support/talekeeper",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", BUILD, str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return folder / built.stdout.split()[-1]


@pytest.fixture
def program(wheel: Path, tmp_path: Path) -> list[str]:
    """Install the wheel into an environment that has its libraries, and no checkout."""
    place = tmp_path / "program"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    paths = sysconfig.get_paths("venv", vars={"base": str(place), "platbase": str(place)})
    packages = Path(paths["purelib"])
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return [str(Path(paths["scripts"], "python")), "-c", PROGRAM]


def test_the_wheel_may_be_uploaded_and_names_the_systems_that_it_is_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        [name] = [each for each in file.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = message_from_string(file.read(name).decode())
    classifiers = metadata.get_all("Classifier", [])
    assert not [each for each in classifiers if each.startswith("Private")]
    assert "Operating System :: Microsoft :: Windows" in classifiers
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows names the user's folder by itself")
def test_an_installed_program_serves_from_an_empty_folder_and_keeps_data_in_the_users(
    program: list[str], tmp_path: Path
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    values = environment() | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    values = {name: value for name, value in values.items() if not name.startswith("XDG_")}

    with subprocess.Popen(
        [*program, "serve", "--port", "0"],
        cwd=here,
        env=values,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        said = process.stdout.readline()
        page = httpx.get(url, timeout=PATIENCE, trust_env=False)
        process.terminate()
        assert process.wait(PATIENCE) == 0

    assert page.status_code == 200
    assert "Talekeeper" in page.text
    folder = home / USER_FOLDERS[sys.platform]
    assert said == f"  data folder: {folder}\n"
    assert {"root.key", "talekeeper.sqlite3"} <= {each.name for each in folder.iterdir()}
    assert list(here.iterdir()) == []
