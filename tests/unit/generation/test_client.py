"""The HTTP client of providers: addresses, limits and server-sent events."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from backend.errors import ValidationError
from backend.generation.client.client import DONE, CharacterJoiner, EventReader, parse_json_bytes
from backend.generation.client.network import (
    HOST_NAME,
    AddressRefusedError,
    AllowedAddress,
    NetworkPolicy,
    ProviderNetworksError,
    Resolver,
    runs_in_container,
)
from backend.generation.model import ModelUnavailableError
from backend.settings import Settings

REFUSED = [
    "0.0.0.0", "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.1.1", "100.64.0.1", "100.127.255.255", "100.100.100.200", "169.254.169.254",
    "168.63.129.16", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::808:808",
    "64:ff9b:1::808:808", "2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1", "3fff::1", "100::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fe80::1",
    "fe80::1%1", "2606:4700::1111%1", "fec0::1", "ff02::1", "5f00::1", "4000::1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "2a00:1450:4001::1",
]  # fmt: skip
ODD = [
    "http://2130706433", "http://0x7f000001", "http://0x7f.1", "http://0177.0.0.1", "http://127.1",
    "http://127.0.0.1.", "http://0x", "http://a.0x7f", "http://1.2.3.4.5", "http://256.1.1.1",
    "http://[::1%25lo]", "http://[::ffff:7f.1]",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_outside_the_public_internet_are_refused(address: str) -> None:
    assert not NetworkPolicy().allows(ip_address(address), 443)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is_allowed_at_ports_of_the_web_and_free_ones(address: str) -> None:
    policy = NetworkPolicy(["none"])
    ports = (22, 25, 80, 443, 1024, 8080)
    assert [port for port in ports if policy.allows(ip_address(address), port)] == [*ports[2:]]


@pytest.mark.parametrize(
    ("allowed", "address", "port", "is_allowed"),
    [
        ("loopback", "127.0.0.1", 11434, True),
        ("loopback", "::1", 11434, True),
        ("loopback", "10.0.0.1", 11434, False),
        ("loopback", "::ffff:127.0.0.1", 11434, False),
        ("loopback", "0.0.0.0", 11434, False),
        ("loopback", "127.0.0.1", 8000, False),  # Talekeeper itself
        ("127.0.0.1:8000", "127.0.0.1", 8000, False),
        ("10.0.0.1", "10.0.0.1", 8000, True),  # another machine's
        ("private", "192.168.7.7", 5000, True),
        ("private", "fd12::1", 5000, True),
        ("private", "127.0.0.1", 5000, False),
        ("private", "100.64.0.1", 5000, False),
        ("private", "fd00:ec2::254", 80, False),
        ("fd00::/8", "fd20:ce::254", 80, False),
        ("fd00:ec2::254", "fd00:ec2::254", 80, True),
        ("169.254.0.0/16", "169.254.169.254", 80, False),
        ("169.254.0.0/16", "169.254.1.1", 80, True),
        ("169.254.169.254", "169.254.169.254", 80, True),
        ("169.254.169.254", "::ffff:169.254.169.254", 80, False),
        ("::ffff:0:0/96", "::ffff:127.0.0.1", 80, False),
        ("64:ff9b::/96", "64:ff9b::808:808", 443, True),  # public, through a NAT64
        ("64:ff9b::/96", "64:ff9b::a9fe:a9fe", 443, False),
        ("100.64.0.0/10:11434", "100.64.0.1", 11434, True),
        ("100.64.0.0/10:11434", "100.64.0.1", 443, False),
        ("[::1]:81", "::1", 81, True),
        ("[fd00::/8]:81", "fd12::1", 81, True),
        ("8.8.8.8:53", "8.8.8.8", 53, True),
        ("10.0.0.0/8", "10.0.0.1", 25, False),
        ("fe80::/10", "fe80::1%1", 443, False),
    ],
)
def test_the_setting_allows_the_named_networks(
    allowed: str, address: str, port: int, is_allowed: bool
) -> None:
    policy = NetworkPolicy([allowed], own_port=8000)
    assert policy.allows(ip_address(address), port) is is_allowed


@pytest.mark.parametrize("entry", ["lan", "10.0.0.0/33", "10.0.0.1/8", "localhost", "a:80", "0x7f"])
def test_an_entry_that_cannot_be_read_is_named(entry: str) -> None:
    with pytest.raises(ProviderNetworksError, match=entry):
        NetworkPolicy([entry])


@pytest.mark.parametrize(
    ("changes", "is_allowed"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1"}, True),
        ({"public_origin": "http://localhost:8000"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "192.168.1.2"}, False),
        ({"public_origin": "https://tales.example"}, False),
        ({"allowed_hosts": ("tales.lan",)}, False),
        ({"provider_networks": ("none",)}, False),
        ({"provider_networks": ("private",)}, False),
    ],
)
def test_loopback_is_allowed_by_default_if_only_this_machine_is_served(
    tmp_path: Path, changes: dict[str, Any], is_allowed: bool
) -> None:
    policy = NetworkPolicy.from_settings(Settings(_env_file=None, data_dir=tmp_path, **changes))  # type: ignore[call-arg]
    assert policy.allows(ip_address("127.0.0.1"), 11434) is is_allowed


@pytest.mark.parametrize("url", ODD)
def test_an_address_in_an_odd_spelling_is_refused_even_if_allowed(url: str) -> None:
    with pytest.raises(AddressRefusedError):
        NetworkPolicy(["0.0.0.0/0", "::/0"]).check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a.example", "file:///etc/passwd", "unix:/run/x", "//a.example", "a.example", ""),
        *("http://me@a.example", "http://me:secret@a.example", "http://@a.example", "http://"),
        *("http://a.example:99999", "http://[::1", "gopher://1.1.1.1", "http+unix://%2Frun"),
        *("http://127.0.0.1", "https://[::1]:8080/v1", "https://1.1.1.1:25", "http://[::]"),
        *("http://1.1.1.1", "http://[2606:4700::1111]:8080/v1"),  # a key could be read on its way
    ],
)
def test_a_url_is_of_the_web_without_secrets_and_at_no_refused_address(url: str) -> None:
    with pytest.raises(AddressRefusedError):
        NetworkPolicy().check_url(url)


def test_a_name_is_not_looked_up_for_a_url() -> None:
    NetworkPolicy().check_url("https://name.that.does.not.exist.example:8443/v1?x=1")


def answering(*answer: str | OSError) -> Resolver:
    async def resolve(_host: str, _port: int) -> list[str]:
        for each in answer:
            if isinstance(each, OSError):
                raise each
        return [str(each) for each in answer]

    return resolve


@pytest.mark.anyio
async def test_refused_addresses_of_a_name_are_left_out() -> None:
    answer = ("127.0.0.1", "1.1.1.1", "::1", "1.1.1.1", "2a00::1", "8.8.8.8", "9.9.9.9", "1.0.0.1")
    policy = NetworkPolicy(resolve=answering(*answer))
    assert await policy.addresses("a.example", 443) == ["1.1.1.1", "2a00::1", "8.8.8.8", "9.9.9.9"]


@pytest.mark.anyio
async def test_a_refused_name_looks_like_an_unknown_one() -> None:
    answers = (
        *((), ("127.0.0.1",), ("10.0.0.1", "fd00::1")),
        (socket.gaierror(socket.EAI_NONAME, "no such name"),),
    )
    told: set[str] = set()
    for answer in answers:
        policy = NetworkPolicy(resolve=answering(*answer))
        with pytest.raises(AddressRefusedError) as caught:
            await policy.addresses("db.internal", 443)
        told.add(str(caught.value.to_problem(for_administrator=True)))
        assert "db.internal" not in str(caught.value.to_problem())

    assert len(told) == 1
    assert "https://db.internal:443 is refused" in told.pop()


@pytest.mark.anyio
async def test_a_name_server_that_fails_for_now_is_worth_another_attempt() -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "try again")
    policy = NetworkPolicy(resolve=answering(error))
    with pytest.raises(ModelUnavailableError) as caught:
        await policy.addresses("a.example", 443)
    assert caught.value.retryable


@pytest.mark.anyio
async def test_names_are_looked_up_by_the_system() -> None:
    with pytest.raises(AddressRefusedError):
        await NetworkPolicy().addresses("localhost", 8080)
    with pytest.raises(AddressRefusedError):
        await NetworkPolicy().addresses("a" * 64 + ".example", 8080)  # no name can be like that
    assert "127.0.0.1" in await NetworkPolicy(["loopback"]).addresses("localhost", 8080)


def test_a_key_goes_in_the_clear_through_named_networks_alone() -> None:
    policy = NetworkPolicy(["10.0.0.0/8", "8.8.8.8:8080"])
    plain = [
        policy.allows(ip_address(address), port, is_plain=True)
        for address, port in (("10.0.0.1", 80), ("8.8.8.8", 8080), ("8.8.8.8", 80), ("1.1.1.1", 80))
    ]
    assert plain == [True, True, False, False]
    assert policy.allows(ip_address("1.1.1.1"), 443)


LISTED = frozenset(
    AllowedAddress(host, port)
    for host, port in (
        *(("10.0.0.5", 8080), ("fd12::1", 8080), ("nas.lan", 1234), ("localhost", 8000)),
        # Addresses that no administrator can allow, but that could be in the table.
        *(("169.254.169.254", 80), ("169.254.1.1", 80), ("fe80::1", 80), ("0.0.0.0", 80)),
        *(("127.0.0.1", 8000), ("::ffff:10.0.0.5", 8080)),
    )
)


FORBIDDEN = [
    "169.254.169.254", "fd00:ec2::254", "169.254.1.1", "fe80::1", "0.0.0.0", "::", "224.0.0.1",
]  # fmt: skip


def listing(*answer: str, decides_alone: bool = False, **options: Any) -> NetworkPolicy:
    """A policy with `LISTED`, for which every name has these addresses."""
    policy = NetworkPolicy(
        own_port=8000, resolve=answering(*answer), decides_alone=decides_alone, **options
    )
    policy.listed = LISTED
    return policy


def refused(policy: NetworkPolicy, url: str) -> AddressRefusedError:
    with pytest.raises(AddressRefusedError) as caught:
        policy.check_url(url)
    caught.value.disclose()
    return caught.value


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.5:8080/v1", "https://10.0.0.5:8080", "http://[fd12:0::1]:8080", "http://a:81"],
)
def test_an_address_that_administrators_allow_passes_with_and_without_tls(url: str) -> None:
    listing().check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://10.0.0.5:8081", "http://10.0.0.6:8080", "http://169.254.169.254"),
        *("http://169.254.1.1", "http://[fe80::1]", "http://0.0.0.0", "http://127.0.0.1:8000"),
        *("http://[::ffff:10.0.0.5]:8080", "http://127.0.0.1:8080"),
    ],
)
def test_nothing_beside_an_allowed_address_and_port_passes(url: str) -> None:
    refused(listing(), url)


@pytest.mark.anyio
async def test_an_allowed_name_leads_to_inner_addresses_at_its_port_alone() -> None:
    assert await listing("192.168.1.2").addresses("NAS.lan.", 1234, is_plain=True) == [
        "192.168.1.2"
    ]
    for host, port in (("nas.lan", 1235), ("other.lan", 1234)):
        with pytest.raises(AddressRefusedError):
            await listing("192.168.1.2").addresses(host, port)


@pytest.mark.anyio
async def test_a_name_is_allowed_if_its_address_is() -> None:
    assert await listing("10.0.0.5").addresses("any.lan", 8080, is_plain=True) == ["10.0.0.5"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        *(("nas.lan", 1234, address) for address in FORBIDDEN),
        *(("localhost", 8000, address) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")),
    ],
)
async def test_an_allowed_name_leads_to_no_forbidden_address_and_not_to_talekeeper_itself(
    host: str, port: int, address: str
) -> None:
    with pytest.raises(AddressRefusedError):
        await listing(address).addresses(host, port)


@pytest.mark.anyio
async def test_an_allowed_name_that_does_not_exist_is_named() -> None:
    policy = listing(in_container=True)
    policy.listed |= {AllowedAddress(HOST_NAME, 8080)}
    for host, port, said in (
        ("nas.lan", 1234, "The name nas.lan has no address."),
        (HOST_NAME, 8080, f"--add-host={HOST_NAME}:host-gateway"),
    ):
        with pytest.raises(ModelUnavailableError) as caught:
            await policy.addresses(host, port)
        assert said in caught.value.to_problem(for_administrator=True)["detail"]
        assert host not in str(caught.value.to_problem())


def test_allowed_addresses_do_not_count_if_the_setting_decides() -> None:
    error = refused(listing(decides_alone=True), "http://10.0.0.5:8080")
    assert "TALEKEEPER_PROVIDER_NETWORKS" in error.detail
    assert error.address is not None
    assert not error.address.can_be_allowed


@pytest.mark.parametrize(
    ("url", "said", "can_be_allowed"),
    [
        ("http://192.168.1.9:8080/v1", "http://192.168.1.9:8080 is refused: it is not on", True),
        ("http://[fd00::9]:8080/v1", "http://[fd00::9]:8080 is refused: it is not on", True),
        ("http://1.1.1.1/v1", "http://1.1.1.1:80 is refused: it needs https://", True),
        ("https://1.1.1.1:22", "https://1.1.1.1:22 is refused: it needs https://", True),
        ("http://169.254.169.254/v1", "such addresses are reserved for clouds and networks", False),
        ("http://[fd00:ec2::254]/v1", "such addresses are reserved for clouds and networks", False),
        ("http://127.0.0.1:8000/api", "http://127.0.0.1:8000 is Talekeeper itself.", False),
    ],
)
def test_a_refusal_names_the_address_and_who_can_allow_it(
    url: str, said: str, can_be_allowed: bool
) -> None:
    error = refused(NetworkPolicy(own_port=8000), url)
    assert said in error.detail
    assert error.address is not None
    assert error.address.can_be_allowed is can_be_allowed
    assert ("administrator" in error.detail) is can_be_allowed


def test_in_a_container_a_loopback_address_is_the_containers_and_the_machine_is_offered() -> None:
    error = refused(NetworkPolicy(in_container=True), "http://127.0.0.1:8080/v1")
    assert "http://127.0.0.1:8080 is in the container" in error.detail
    assert f"http://{HOST_NAME}:8080" in error.detail
    assert error.to_problem()["address"]["instead"] == HOST_NAME
    assert NetworkPolicy(in_container=True).machine_host == HOST_NAME
    assert NetworkPolicy(["loopback"], in_container=True).machine_host == "127.0.0.1"
    assert NetworkPolicy().machine_host == "127.0.0.1"


@pytest.mark.anyio
async def test_in_a_container_localhost_is_the_containers_as_well() -> None:
    policy = NetworkPolicy(in_container=True, resolve=answering("127.0.0.1", "::1"))
    with pytest.raises(AddressRefusedError) as caught:
        await policy.addresses("localhost", 8080, is_plain=True)
    assert HOST_NAME in caught.value.to_problem(for_administrator=True)["detail"]


@pytest.mark.parametrize(
    ("host", "port", "kept"),
    [
        ("127.0.0.1", 8080, "127.0.0.1"),
        (" NAS.lan. ", 8000, "nas.lan"),
        ("[FD12:0::1]", 8080, "fd12::1"),
        ("my_model.internal", 22, "my_model.internal"),
        ("1.1.1.1", 80, "1.1.1.1"),
    ],
)
def test_one_host_can_be_allowed_at_one_port(host: str, port: int, kept: str) -> None:
    assert NetworkPolicy(own_port=8000).allowable(host, port) == AllowedAddress(kept, port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        *(("169.254.169.254", 80), ("168.63.129.16", 80), ("169.254.1.1", 80), ("fe80::1", 80)),
        *(("0.0.0.0", 81), ("::", 81), ("255.255.255.255", 81), ("224.0.0.1", 81)),
        *(("ff02::1", 81), ("::ffff:10.0.0.1", 81), ("64:ff9b::a9fe:a9fe", 80), ("fe80::1%1", 80)),
        *(("127.0.0.1", 8000), ("localhost", 8000), ("::1", 8000), ("2130706433", 80)),
        *(("10.0.0.0/8", 81), ("*.lan", 81), ("a b", 81), ("-a", 81), ("http://a", 81), (".", 81)),
        *(("a:80", 81), ("user@a", 81), ("é.lan", 81), ("a/b", 81)),
    ],
)
def test_no_network_nor_metadata_address_nor_own_port_can_be_allowed(host: str, port: int) -> None:
    with pytest.raises(ValidationError):
        NetworkPolicy(own_port=8000).allowable(host, port)


@pytest.mark.parametrize(
    ("name", "text", "is_container"),
    [
        (".dockerenv", "", True),
        ("run/.containerenv", "", True),
        ("proc/1/cgroup", "12:pids:/docker/0123456789ab\n", True),
        ("proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n", True),
        ("proc/1/cgroup", "0::/init.scope\n", False),
        ("etc/hostname", "box\n", False),
    ],
)
def test_a_container_is_recognised_by_files_of_its_runtime(
    tmp_path: Path, name: str, text: str, is_container: bool
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    assert runs_in_container(tmp_path) is is_container


def read(stream: bytes, size: int) -> list[Any]:
    reader = EventReader()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    return [*(value for chunk in chunks for value in reader.feed(chunk)), *reader.close()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("stream", "values"),
    [
        (b'data: {"a": 1}\n\ndata:{"b": 2}\n\n', [{"a": 1}, {"b": 2}]),
        (b"\xef\xbb\xbfdata: 1\r\n\r\n: a comment\r\n\r\ndata: 2\r\rid: 5\n\n", [1, 2]),
        (b'event: message\ndata: {"a":\ndata: 1}\nretry: 3\n\n', [{"a": 1}]),
        (b'data: {"a": 1}\ndata: {"b": 2}\n\n', [{"a": 1}, {"b": 2}]),
        (b"data:\n\ndata: \n\ndata: 1\n\n", [1]),
        (b"data: not json\n\ndata: 1\n\n", [1]),
        (b"data: null\n\ndata: [DONE]\n\n", [None, DONE]),
        (b"data: [DONE] \n\n", [DONE]),
        (b"data: 1\n\ndata: 2", [1, 2]),
        (b"data: 1\n\ndata: [DONE]", [1, DONE]),
        (b'error: {"code": 500}\n\n', [{"error": {"code": 500}}]),
        (b"", []),
    ],
)
def test_events_do_not_depend_on_how_they_are_cut(
    stream: bytes, values: list[Any], size: int
) -> None:
    assert read(stream, size) == values


def test_json_that_the_fast_parser_refuses_is_read() -> None:
    assert parse_json_bytes(b'{"a": [1, "\\ud83d"]}') == {"a": [1, "\ud83d"]}
    with pytest.raises(ValueError, match="Expecting"):
        parse_json_bytes(b'{"a"')
    with pytest.raises(ValueError, match="nested"):
        parse_json_bytes(b"[" * 100_000)


def escaped(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


FOX = "\N{FOX FACE}"


@pytest.mark.parametrize(
    ("pieces", "joined"),
    [
        (["A fox"], ["A fox"]),
        (["A \ud83e", "\udd8a runs"], ["A ", f"{FOX} runs"]),
        ([escaped(FOX.encode()[a:b]) for a, b in ((0, 1), (1, 3), (3, 4))], ["", "", FOX]),
        ([escaped("é".encode()[:1]), "x"], ["", "\ufffdx"]),
        (["\ud83e", "x"], ["", "\ufffdx"]),
        (["\udc00x"], ["\ufffdx"]),
        ([escaped(b"\x80\x80\x80")], ["\ufffd\ufffd\ufffd"]),
    ],
)
def test_a_character_that_was_cut_in_two_is_joined(pieces: list[str], joined: list[str]) -> None:
    joiner = CharacterJoiner()
    assert [joiner.feed(piece) for piece in pieces] == joined
    assert joiner.close() == ""
    assert joiner.feed("A \ud83e") == "A "
    assert joiner.close() == "\ufffd", "a part at the very end is replaced"
