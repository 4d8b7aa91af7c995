from __future__ import annotations

from pathlib import Path

import pytest
from platformdirs import user_data_path

from backend import settings
from backend.settings import Settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TALEKEEPER_DATA_DIR", raising=False)
    return tmp_path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "IS_INSTALLED", True)


def data_folder(**values: str) -> Path:
    return Settings.model_validate(values).data_dir


def test_allowed_hosts_are_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALEKEEPER_ALLOWED_HOSTS", "tales.lan, nas")
    settings = Settings(_env_file=None)  # type: ignore[call-arg]  # pydantic-settings' own argument
    assert settings.allowed_hosts == ("tales.lan", "nas")


@pytest.mark.usefixtures("here")
def test_a_checkout_keeps_its_data_in_the_working_directory() -> None:
    assert data_folder() == Path("data")


@pytest.mark.usefixtures("here", "installed")
def test_an_installed_program_keeps_its_data_in_the_users_folder() -> None:
    assert data_folder() == user_data_path("talekeeper", appauthor=False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["root.key", "talekeeper.sqlite3"])
def test_an_installed_program_goes_on_with_a_data_folder_in_use(here: Path, name: str) -> None:
    (here / "data").mkdir()
    (here / "data" / "notes.txt").touch()
    assert data_folder() != Path("data")
    (here / "data" / name).touch()
    assert data_folder() == Path("data")


@pytest.mark.usefixtures("installed")
def test_the_setting_comes_before_a_data_folder_in_use(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "data").mkdir()
    (here / "data" / "root.key").touch()
    monkeypatch.setenv("TALEKEEPER_DATA_DIR", "tales")
    assert data_folder() == Path("tales")
    assert data_folder(data_dir="others") == Path("others")
