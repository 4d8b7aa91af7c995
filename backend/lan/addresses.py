"""The names and addresses of this machine in the local network."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, ip_address

from backend.core.private_networks import PRIVATE, contains_address

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of no machine: only the route to it is asked for, and nothing is sent."""


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
            probe.connect(_ELSEWHERE)
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
