"""The certificates of a server in the local network, as clients over real TLS see them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import stat
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from backend.lan import service
from backend.lan.certificates import CertificateError
from backend.lan.service import LocalNetwork
from tests.support.server import settings_of

pytestmark = pytest.mark.anyio

HOME, CAFE = IPv4Address("192.168.7.20"), IPv4Address("10.3.0.9")


class Machine:
    """A machine that moves between networks, and through time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.addresses = [HOME]
        self.at = datetime.now(UTC)
        monkeypatch.setattr(service, "find_names", lambda: ("den.local", "den"))

    def start(self, **settings: Any) -> LocalNetwork:
        return LocalNetwork(
            settings_of(data_dir=self.folder, lan=True, **settings),
            find=lambda: self.addresses,
            now=lambda: self.at,
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncGenerator[int]:
    """A server without answers, for TLS handshakes."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def shown(port: int, name: str, root: bytes) -> x509.Certificate:
    """The certificate that a client gets which trusts this root alone and asks for this name."""
    trusting = ssl.create_default_context(cadata=root)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=name)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return x509.load_der_x509_certificate(der)


async def test_a_client_that_trusts_the_root_connects_by_every_name_and_address(
    machine: Machine,
) -> None:
    lan = machine.start(allowed_hosts=("tales.lan", "192.168.99.1"))
    async with listening(lan.open()) as port:
        own = ("den.local", "den", "localhost", "127.0.0.1", str(HOME))
        for name in (*own, "tales.lan", "192.168.99.1"):
            await shown(port, name, lan.root.der)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await shown(port, "example.org", lan.root.der)


async def test_the_root_can_sign_for_no_other_name_and_for_no_public_address(
    machine: Machine,
) -> None:
    machine.start().open()
    lan = machine.start()
    context = lan.open()
    for name, address in (("example.org", HOME), ("den", IPv4Address("203.0.113.5"))):
        forged = lan.root.sign_server([name], [address], machine.at)
        path = machine.folder / "forged.pem"
        path.write_text(forged.to_pem())
        context.load_cert_chain(path)
        async with listening(context) as port:
            with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
                await shown(port, name, lan.root.der)


async def test_root_and_certificate_stay_from_start_to_start(machine: Machine) -> None:
    first = machine.start()
    first.open()
    kept = (machine.folder / "lan" / "server.pem").read_text()
    second = machine.start()
    second.open()
    assert second.root.fingerprint == first.root.fingerprint
    assert (machine.folder / "lan" / "server.pem").read_text() == kept


async def test_the_keys_are_for_their_owner_alone(machine: Machine) -> None:
    machine.start().open()
    files = list((machine.folder / "lan").iterdir())
    assert {each.name for each in files} == {"root.pem", "server.pem"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


async def test_a_certificate_is_renewed_without_a_restart_before_it_ends(machine: Machine) -> None:
    machine.at -= timedelta(days=340)
    lan = machine.start()
    async with listening(lan.open()) as port:
        old = await shown(port, "den.local", lan.root.der)
        assert old.not_valid_after_utc - old.not_valid_before_utc < timedelta(days=398)
        machine.at += timedelta(days=300)
        await lan.refresh()
        assert await shown(port, "den.local", lan.root.der) == old
        machine.at += timedelta(days=40)
        await lan.refresh()
        new = await shown(port, "den.local", lan.root.der)
        assert new.not_valid_after_utc > machine.at + timedelta(days=364)


async def test_a_new_address_gets_a_certificate_without_a_restart(machine: Machine) -> None:
    lan = machine.start()
    async with listening(lan.open()) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(port, str(CAFE), lan.root.der)
        machine.addresses = [CAFE]
        await lan.refresh()
        await shown(port, str(CAFE), lan.root.der)
        assert lan.find_origins()[0] == f"https://{CAFE}:8443"


async def test_an_expired_root_is_replaced_with_its_certificates(machine: Machine) -> None:
    lan = machine.start()
    lan.open()
    old = lan.root.fingerprint
    machine.at += timedelta(days=3640)
    await lan.refresh()
    assert lan.root.fingerprint != old
    assert not lan.root.is_due(machine.at)


async def test_a_machine_that_is_renamed_keeps_its_root_and_its_addresses(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = machine.start()
    old.open()
    monkeypatch.setattr(service, "find_names", lambda: ("attic.local", "attic"))
    lan = machine.start()
    async with listening(lan.open()) as port:
        await shown(port, str(HOME), old.root.der)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown(port, "attic.local", old.root.der)


async def test_a_machine_may_have_the_longest_of_names(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "a" * 63
    monkeypatch.setattr(service, "find_names", lambda: (f"{label}.local", label))
    lan = machine.start()
    async with listening(lan.open()) as port:
        await shown(port, f"{label}.local", lan.root.der)


async def test_a_damaged_certificate_is_made_again_and_a_damaged_root_is_named(
    machine: Machine,
) -> None:
    machine.start().open()
    (machine.folder / "lan" / "server.pem").write_text("torn")
    machine.start().open()
    (machine.folder / "lan" / "root.pem").write_text("torn")
    with pytest.raises(CertificateError, match=r"root\.pem is damaged\. Delete it"):
        machine.start().open()
