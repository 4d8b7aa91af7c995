from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

PRIVATE: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
            *("169.254.0.0/16", "fe80::/10"),  # without a router
            "100.64.0.0/10",  # Tailscale
        ),
    )
)

LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1"))


def contains_address(networks: Iterable[Network], text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 addresses as mapped IPv6 addresses.
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in networks)


def parse_private(text: str) -> Network:
    """Parse a network such as `192.168.1.0/24`. Raises `ValueError`, also for public parts."""
    network = ip_network(text)
    for each in PRIVATE:
        if each.version == network.version and network.subnet_of(each):  # type: ignore[arg-type]
            return network
    raise ValueError(f"{text} is not a private network")
