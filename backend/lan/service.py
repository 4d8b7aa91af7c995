"""This server in the local network: its addresses, and its certificate."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from backend.core.files import create_private, replace_private
from backend.core.logs import get_logger
from backend.core.private_networks import PRIVATE, contains_address
from backend.errors import NotFoundError
from backend.settings import Settings

if TYPE_CHECKING:
    from backend.lan.certificates import CertifiedKey

log = get_logger(__name__)

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_UNUSED_ADDRESS = ("192.0.2.1", 9)
"""A reserved address. Only its route is looked up, and nothing is sent."""


def find_names() -> tuple[str, ...]:
    """Return the machine's names, the one that phones can look up first; none if it has none."""
    label = socket.gethostname().partition(".")[0].lower()
    if not _LABEL.fullmatch(label) or label == "localhost" or label.isdecimal():
        return ()
    return f"{label}.local", label


def find_addresses() -> list[IPv4Address]:
    """Return the machine's private IPv4 addresses, the one of the default route first."""
    import psutil  # noqa: PLC0415  # 30 ms at a start that seldom needs it

    main = _main_address()
    found = {
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and contains_address(PRIVATE, each.address)
    }
    return sorted(map(IPv4Address, found), key=lambda each: (str(each) != main, each))


def _main_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNUSED_ADDRESS)
        except OSError:  # there is no route, as without a network
            return ""
        return str(probe.getsockname()[0])


def split_hosts(hosts: Sequence[str]) -> tuple[list[str], list[IPv4Address]]:
    """Return the names and the private IPv4 addresses among the hosts, for a certificate."""
    names: list[str] = []
    addresses: list[IPv4Address] = []
    for host in hosts:
        try:
            address = ip_address(host)
        except ValueError:
            if _NAME.fullmatch(host.lower()):
                names.append(host.lower())
        else:
            if isinstance(address, IPv4Address) and contains_address(PRIVATE, host):
                addresses.append(address)
    return names, addresses


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LocalNetwork:
    """Manages a certificate for the current names and addresses of this machine.

    Root and certificate are stored in `lan` in the data folder, so that devices still trust the
    root after a restart. Without `Settings.lan` there is nothing to open or to refresh.

    Args:
        settings: Their `lan_port` is the port that is listened on.
        find: Finds the machine's private addresses, the most usual one first.
        now: The time.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        find: Callable[[], list[IPv4Address]] = find_addresses,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.is_on = settings.lan
        self.names = find_names() if settings.lan else ()
        self._port = settings.lan_port
        self._listed_names, self._listed_addresses = split_hosts(settings.allowed_hosts)
        self._folder = settings.data_dir / "lan"
        self._path = self._folder / "server.pem"
        self._find = find
        self._now = now
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["http/1.1"])
        self._root: CertifiedKey | None = None
        self._server: CertifiedKey | None = None

    def open(self) -> ssl.SSLContext:
        """Load or make the certificates. Later certificates are used for new connections.

        Raises `CertificateError`, and `OSError` if the folder cannot be used.
        """
        self._root = self._load_root()
        self._server = _read(self._path)
        if self._is_due(self._root):
            self._renew()
        self._context.load_cert_chain(self._path)
        return self._context

    async def refresh(self) -> None:
        """Renew the certificate if it expires soon, or if the machine has another address."""
        if self._root is not None and self._is_due(self._root):
            await asyncio.to_thread(self._renew)
            self._context.load_cert_chain(self._path)

    @property
    def root(self) -> CertifiedKey:
        """The root certificate. Raises `NotFoundError` if the local network is not served."""
        if self._root is None:
            raise NotFoundError("Start the server with `talekeeper serve --lan`.")
        return self._root

    def find_origins(self) -> list[str]:
        """Return the origins at which devices find the server, the most usual one first."""
        hosts = [*map(str, self._addresses()), *self._all_names()]
        return [f"https://{each}:{self._port}" for each in hosts]

    def _addresses(self) -> list[IPv4Address]:
        return list(dict.fromkeys((*self._listed_addresses, *self._find())))

    def _all_names(self) -> list[str]:
        return list(dict.fromkeys((*self.names, *self._listed_names)))

    def _load_root(self) -> CertifiedKey:
        """Load the root, or make one if there is none, or if it expires soon."""
        from backend.lan import certificates  # noqa: PLC0415  # 70 ms at a start that needs it not

        path, at = self._folder / "root.pem", self._now()
        label = self.names[-1] if self.names else "this machine"
        if not path.exists():
            create_private(path, certificates.make_root(label, self._all_names(), at).to_pem())
        root = _read(path)
        if root is None:
            raise certificates.CertificateError(
                f"{path} is damaged. Delete it: the next start creates a new one, which must be "
                "installed on each device again."
            )
        if root.is_due(at):
            root = certificates.make_root(label, self._all_names(), at)
            replace_private(path, root.to_pem())
            log.warning("lan.root_renewed")
        return root

    def _is_due(self, root: CertifiedKey) -> bool:
        server = self._server
        return (
            server is None
            or server.is_due(self._now())
            or not server.covers(root, root.find_allowed(self._all_names()), self._addresses())
        )

    def _renew(self) -> None:
        self._root = root = self._load_root()
        names, addresses = root.find_allowed(self._all_names()), self._addresses()
        self._server = root.sign_server(names, addresses, self._now())
        replace_private(self._path, self._server.to_pem())
        log.info("lan.certificate_made", count=len(names) + len(addresses))


def _read(path: Path) -> CertifiedKey | None:
    """Read a certificate and its key; None if there is none, or if it is damaged."""
    from backend.lan.certificates import CertifiedKey  # noqa: PLC0415  # as above

    try:
        return CertifiedKey.from_pem(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
