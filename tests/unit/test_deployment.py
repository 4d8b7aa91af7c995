"""The container image and the Compose file, as far as they can be checked without an engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.settings import Settings

ROOT = Path(__file__).parents[2]
VARIABLES = {f"TALEKEEPER_{name.upper()}" for name in Settings.model_fields}


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def copied_into_the_image() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", text("Dockerfile"), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(text("compose.yaml"))
    return loaded


@pytest.mark.parametrize("path", ["Dockerfile", "compose.yaml"])
def test_only_settings_that_exist_are_set(path: str) -> None:
    named = set(re.findall(r"TALEKEEPER_[A-Z_]+[A-Z]", text(path)))

    assert named
    assert named <= VARIABLES


@pytest.mark.parametrize("source", copied_into_the_image())
def test_what_the_image_takes_exists_and_reaches_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in text(".dockerignore").splitlines()


def test_the_image_takes_all_that_the_package_is_built_from() -> None:
    project = text("pyproject.toml")
    named = {"pyproject.toml", "uv.lock", "README.md", "LICENSE", "NOTICE", "backend", "prompts"}

    assert set(copied_into_the_image()) == named
    assert 'readme = "README.md"' in project
    assert 'license-files = ["LICENSE", "NOTICE"]' in project


def test_the_image_is_made_with_the_uv_of_the_scripts() -> None:
    (pinned,) = re.findall(r"^UV_VERSION=(\S+)$", text("scripts/_environment.sh"), re.MULTILINE)

    assert f"ARG UV_VERSION={pinned}\n" in text("Dockerfile")


def test_only_the_door_is_open_and_to_this_machine_alone(compose: dict[str, Any]) -> None:
    open_ports = {
        name: service["ports"]
        for name, service in compose["services"].items()
        if "ports" in service
    }

    assert open_ports == {"door": ["127.0.0.1:8000:8000"]}


def test_the_proxies_that_are_believed_are_the_door_and_the_host(compose: dict[str, Any]) -> None:
    door = compose["services"]["door"]["networks"]["default"]["ipv4_address"]
    (subnet,) = compose["networks"]["default"]["ipam"]["config"]

    believed = compose["services"]["api"]["environment"]["TALEKEEPER_TRUSTED_PROXIES"]
    assert believed.split(",") == [door, subnet["gateway"]]


def test_secrets_are_files_that_neither_git_nor_the_image_takes(compose: dict[str, Any]) -> None:
    files = [secret["file"] for secret in compose["secrets"].values()]

    assert {Path(file).parts[0] for file in files} == {"secrets"}
    assert "/secrets/" in text(".gitignore").splitlines()
    assert text(".dockerignore").splitlines()[1] == "*"


def test_what_a_service_waits_for_can_happen(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            is_checked = "healthcheck" in services[name] or services[name]["image"] == "talekeeper"
            assert is_checked or wait["condition"] != "service_healthy"
