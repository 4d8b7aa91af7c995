"""The addresses that the server may connect to for users' providers.

A name is resolved for each connection, and the connection uses one of the checked addresses, so
that a name cannot change its address after the check. Addresses outside the public internet are
refused unless `TALEKEEPER_PROVIDER_NETWORKS` contains them, or, if that is not set, an
administrator has allowed the host and port on the page.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from anyio import CapacityLimiter, to_thread

from backend.errors import ValidationError
from backend.generation.model import ModelError, ModelUnavailableError
from backend.settings import Settings

HOST_NAME = "host.docker.internal"
"""The host of a container. Docker Desktop and recent versions of Podman resolve this name; Docker
on Linux does so if the container was started with `--add-host=host.docker.internal:host-gateway`.

Source: https://docs.docker.com/reference/cli/docker/container/run/#add-host
"""

_MARKER_FILES = (".dockerenv", "run/.containerenv")
"""Files that Docker and Podman create in a container."""

_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|lxc")
"""Parts of the control group's path of a container's first process."""


def runs_in_container(root: Path = Path("/")) -> bool:
    """True if the file system at `root` is a container's."""
    if any((root / name).exists() for name in _MARKER_FILES):
        return True
    try:
        group = (root / "proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return _CGROUP.search(group) is not None


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name and port. Raises `socket.gaierror`."""

MAX_TRIED_ADDRESSES = 4
"""Maximum number of addresses of one name that a connection tries."""

_MAX_LOOKUPS = 16
"""Maximum number of waiting threads, because a user's name server may be slow."""

_LOOPBACK = ("127.0.0.0/8", "::1")
_WORDS = {
    "none": (),
    "loopback": _LOOPBACK,
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
}


def _parse_networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


_NOT_PUBLIC = _parse_networks(
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
    *("192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
)
"""Special-purpose addresses. IPv6 addresses outside `_GLOBAL_UNICAST` are not public either.

Source: https://www.iana.org/assignments/iana-ipv4-special-registry, .../iana-ipv6-special-registry
"""

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

_METADATA = frozenset(
    ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.169.253", "169.254.170.2", "169.254.170.23"),
        *("169.254.169.123", "169.254.42.42", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
        *("fd00:ec2::254", "fd00:ec2::253", "fd00:ec2::23", "fd00:ec2::123", "fd20:ce::254"),
        *("fd00:42::42", "fe80::a9fe:a9fe"),
    )
)
"""Addresses of clouds' metadata services, which return credentials, and similar services. They are
allowed only by a setting with the single address. 168.63.129.16 is Azure's, and looks public."""

_SETTING_ONLY = _parse_networks(
    *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8")
)
"""Link-local, multicast and reserved addresses, which only the setting can allow."""

_LOCALHOST = IPv4Address("127.0.0.1")

_PUBLIC_NEEDS = "it needs https:// and port 80, 443, or 1024 and above"
_CAN_BE_ALLOWED = (
    " An administrator can allow this host and port on the page, under Providers of models."
)
_SETTING_DECIDES = (
    " TALEKEEPER_PROVIDER_NETWORKS decides which addresses are allowed. The operator can add this "
    "one there."
)
_ADD_HOST = f" Start the container with --add-host={HOST_NAME}:host-gateway."

_HOST = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?")

_WEB_PORTS = frozenset({80, 443})
_FIRST_FREE_PORT = 1024

_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""The last part of names that systems may parse as IPv4: `2130706433`, `0x7f.1`, `127.1.`."""

_ENTRY_WITH_PORT = re.compile(r"(?P<network>\[[^\[\]]+\]|[^:]+):(?P<port>[0-9]{1,5})")


_REFUSED = "Talekeeper does not connect to the provider's address. An administrator can see why."


class RefusedAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The host and port of a refused provider.

    `can_be_allowed`: an administrator can allow it. `instead` is the host to enter instead.
    """

    host: str
    port: int
    can_be_allowed: bool
    instead: str | None = None


class AddressRefusedError(ModelError):
    """This installation does not connect to the provider's URL or address.

    Unknown names and names in a private network get the same error. `address` is None for an
    invalid URL. It is shown only to users who may change the provider.
    """

    status, slug, title = 422, "provider-address-refused", "Provider address not allowed"

    def __init__(self, detail: str, *, address: RefusedAddress | None = None) -> None:
        super().__init__(detail if address is None else _REFUSED)
        self.address = address
        if address is not None:
            self.private = {"detail": detail, "address": msgspec.to_builtins(address)}


class ProviderNetworksError(ValidationError):
    """`TALEKEEPER_PROVIDER_NETWORKS` has an invalid entry."""


class AllowedAddress(msgspec.Struct, frozen=True):
    """A host and port that an administrator has allowed on the page.

    `host` is an address or a lowercase name. `NetworkPolicy.allowable` creates it.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_add_brackets(self.host)}:{self.port}"


class NetworkPolicy:
    """The allowed addresses and ports of providers.

    Args:
        allowed: `none`, `loopback`, `private`, addresses and networks (`10.0.0.5`, `fd00::/8`),
            each optionally with a port (`loopback:11434`, `[::1]:8080`).
        own_port: The port of this server, which is refused on this machine.
        decides_alone: Ignore `listed`, because the setting decides.
        in_container: Loopback addresses belong to a container.
        resolve: Resolves names.

    Attributes:
        listed: The addresses that administrators have allowed on the page.

    Raises:
        ProviderNetworksError: An entry of `allowed` is invalid.
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        own_port: int = 0,
        decides_alone: bool = False,
        in_container: bool = False,
        resolve: Resolver | None = None,
    ) -> None:
        self._allowed = [each for entry in allowed for each in _parse_entry(entry)]
        self.own_port = own_port
        self.decides_alone = decides_alone
        self.listed: frozenset[AllowedAddress] = frozenset()
        self._in_container = in_container
        self._lookups = CapacityLimiter(_MAX_LOOKUPS)
        self._resolve = resolve or self._look_up

    @classmethod
    def from_settings(cls, settings: Settings) -> NetworkPolicy:
        """Create the policy of the settings. By default, a local server allows loopback."""
        allowed = settings.provider_networks
        if not allowed and serves_only_this_machine(settings):
            allowed = ("loopback",)
        return cls(
            allowed,
            own_port=settings.port,
            decides_alone=bool(settings.provider_networks),
            in_container=runs_in_container(),
        )

    @property
    def machine_host(self) -> str:
        """The host at which this process reaches programs on the user's machine."""
        is_near = any(_LOCALHOST in network for network, _ in self._allowed)
        return HOST_NAME if self._in_container and not is_near else str(_LOCALHOST)

    def allowable(self, host: str, port: int) -> AllowedAddress:
        """Return the entry of `listed` for a host and port.

        Raises `ValidationError` if it cannot be allowed on the page, or has an unusual form.
        """
        name = host.strip().lower().removesuffix(".")
        try:
            address = _parse_address(name.removeprefix("[").removesuffix("]"))
        except AddressRefusedError as error:
            raise ValidationError(f"host: {error.detail}") from None
        if address is None and not _HOST.fullmatch(name):
            raise ValidationError("host: enter the name or the address of one machine.")
        listed = AllowedAddress(name if address is None else str(address), port)
        if self._is_own(listed.host, port):
            raise ValidationError(f"port: {port} is used by Talekeeper itself on this machine.")
        if address is not None and not _can_be_listed(address):
            raise ValidationError(f"host: {listed.host} cannot be allowed here.")
        return listed

    def allows(
        self, address: Address, port: int, *, is_plain: bool = False, host: str | None = None
    ) -> bool:
        """True if a connection to this address and port is allowed.

        `is_plain` is a connection without TLS. `host` is the name of the address.
        """
        if isinstance(address, IPv6Address):
            if address.scope_id is not None:
                return False
            inner = _find_inner_address(address)
            if inner is not None and not self.allows(inner, port, is_plain=is_plain, host=host):
                return False
        if port == self.own_port and (address.is_loopback or address.is_unspecified):
            return False
        usual = port in _WEB_PORTS or port >= _FIRST_FREE_PORT
        if usual and not is_plain and _is_public(address):
            return True
        return (
            self._is_listed(str(address), address, port)
            or self._is_listed(host, address, port)
            or any(
                only == port or (only is None and usual)
                for network, only in self._allowed
                if address in network and (address not in _METADATA or network.num_addresses == 1)
            )
        )

    def check_url(self, url: str) -> None:
        """Raise `AddressRefusedError` for a forbidden URL. Names are not resolved here."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise AddressRefusedError("The provider's URL is not valid.") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise AddressRefusedError("A provider's URL must begin with http:// or https://.")
        if "@" in parts.netloc:
            raise AddressRefusedError("A provider's URL must not contain a user name or password.")
        address = _parse_address(parts.hostname)
        is_plain = parts.scheme == "http"
        if address is not None and not self.allows(address, port, is_plain=is_plain):
            raise self._make_refusal(parts.hostname, port, is_plain=is_plain, address=address)

    async def addresses(self, host: str, port: int, *, is_plain: bool = False) -> list[str]:
        """Return 1 to 4 allowed addresses of a host.

        Refused addresses are omitted, because the name of a home server may have a private address
        besides its public one. `is_plain` is a connection without TLS.

        Raises:
            AddressRefusedError: No address is allowed, or the name does not exist.
            ModelUnavailableError: Names cannot be resolved now, or an allowed name has no address.
        """
        name = host.lower().removesuffix(".")
        address = _parse_address(host)
        found = [address] if address is not None else await self._find_addresses(name, port)
        allowed = [
            str(each)
            for each in dict.fromkeys(found)
            if self.allows(each, port, is_plain=is_plain, host=name)
        ]
        if allowed:
            return allowed[:MAX_TRIED_ADDRESSES]
        if not found and not self.decides_alone and AllowedAddress(name, port) in self.listed:
            raise self._make_unreachable_error(name, "has no address")
        raise self._make_refusal(host, port, is_plain=is_plain, address=address)

    async def _find_addresses(self, name: str, port: int) -> list[Address]:
        try:
            return list(map(ip_address, await self._resolve(name, port)))
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise self._make_unreachable_error(name, "cannot be resolved now") from None
        except ValueError:  # an invalid name
            pass
        return []

    def _is_listed(self, host: str | None, address: Address, port: int) -> bool:
        """True if administrators have allowed this port of a host with this address."""
        if host is None or self.decides_alone or AllowedAddress(host, port) not in self.listed:
            return False
        return _can_be_listed(address)

    def _is_own(self, host: str, port: int) -> bool:
        return port == self.own_port and _is_loopback(host)

    def _make_refusal(
        self, host: str, port: int, *, is_plain: bool, address: Address | None
    ) -> AddressRefusedError:
        """Return the error that explains why a host is refused, and who can change that."""
        url = _format_url(host, port, is_plain=is_plain)
        can_be_listed, instead = True, None
        if self._is_own(host, port):
            why = f"{url} is Talekeeper itself."
            can_be_listed = False
        elif address is not None and not _can_be_listed(address):
            why = f"{url} is refused: such addresses are reserved for clouds and networks."
            can_be_listed = False
        elif self._in_container and _is_loopback(host):
            instead = HOST_NAME
            why = (
                f"{url} is in the container that Talekeeper runs in. Your machine is at "
                f"{_format_url(instead, port, is_plain=is_plain)}."
            )
        elif address is None:
            why = (
                f"{url} is refused: the name has no address on the public internet, or "
                f"{_PUBLIC_NEEDS}."
            )
        elif _is_public(address):
            why = f"{url} is refused: {_PUBLIC_NEEDS}."
        else:
            why = f"{url} is refused: it is not on the public internet."
        if can_be_listed:
            why += _SETTING_DECIDES if self.decides_alone else _CAN_BE_ALLOWED
        can_be_allowed = can_be_listed and not self.decides_alone
        refused = RefusedAddress(
            host=host, port=port, can_be_allowed=can_be_allowed, instead=instead
        )
        return AddressRefusedError(why, address=refused)

    def _make_unreachable_error(self, name: str, why: str) -> ModelUnavailableError:
        hint = _ADD_HOST if self._in_container and name == HOST_NAME else ""
        error = ModelUnavailableError(f"The provider's name {why}.")
        error.private = {"detail": f"The name {name} {why}.{hint}"}
        return error

    async def _look_up(self, host: str, port: int) -> list[str]:
        """Resolve a name in separate threads, which may outlive the request."""
        # Bytes, because Python's encoding of names fails at long labels.
        found = await to_thread.run_sync(
            partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,
            limiter=self._lookups,
        )
        return [str(sockaddr[0]) for *_, sockaddr in found]


def _parse_entry(text: str) -> Sequence[tuple[Network, int | None]]:
    """Return the networks of an entry of the setting, with its port if it has one."""
    name, port = text, None
    if match := _ENTRY_WITH_PORT.fullmatch(text):
        name, port = match["network"].strip("[]"), int(match["port"])
    try:
        return [(network, port) for network in _parse_networks(*_WORDS.get(name, (name,)))]
    except ValueError:
        raise ProviderNetworksError(
            f"TALEKEEPER_PROVIDER_NETWORKS: {text!r} is not a keyword (loopback, private, none) "
            "or an address or network such as 192.168.1.0/24, with or without a port."
        ) from None


def _parse_address(host: str) -> Address | None:
    """Return a numeric address, or None for a name.

    Raises `AddressRefusedError` for an address in an unusual form.
    """
    if ":" not in host and not _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return None
    try:
        return ip_address(host)
    except ValueError:
        raise AddressRefusedError(
            "Write the address in the provider's URL in its usual form, such as 192.0.2.7."
        ) from None


def _find_inner_address(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address may lead."""
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address not in _METADATA and not any(address in each for each in _NOT_PUBLIC)


def _can_be_listed(address: Address) -> bool:
    """True if administrators can allow the address on the page."""
    if isinstance(address, IPv6Address) and (address.scope_id or _find_inner_address(address)):
        return False
    return address not in _METADATA and not any(address in each for each in _SETTING_ONLY)


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _format_url(host: str, port: int, *, is_plain: bool) -> str:
    return f"{'http' if is_plain else 'https'}://{_add_brackets(host)}:{port}"


def serves_only_this_machine(settings: Settings) -> bool:
    """True if the server listens only on loopback, and no proxy is configured."""
    names = [settings.host, *settings.allowed_hosts]
    if settings.public_origin:
        names.append(urlsplit(settings.public_origin).hostname or "")
    return not settings.lan and all(map(_is_loopback, names))


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
