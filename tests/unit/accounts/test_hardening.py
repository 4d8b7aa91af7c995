"""Limits that hold before anyone has signed in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import msgspec
import pytest

from backend.accounts.auth.credentials import MAX_WAITING_PASSWORDS, Stretcher
from backend.accounts.auth.throttle import ACCOUNT_ALLOWANCE
from backend.accounts.errors import BusyError
from backend.settings import Settings
from backend.vault.slots import DEFAULT_KDF, PasswordKdf


def test_an_account_has_more_free_attempts_and_then_the_same_delays() -> None:
    delays = [
        ACCOUNT_ALLOWANCE.delay_after(n)
        for n in range(ACCOUNT_ALLOWANCE.free - 1, ACCOUNT_ALLOWANCE.free + 5)
    ]
    assert delays == [0, 1, 2, 4, 8, 16]


@pytest.mark.anyio
async def test_a_few_wait_for_their_turn_and_the_rest_is_sent_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()

    def stretch(_: PasswordKdf, password: str) -> bytes:
        go_on.wait()
        return password.encode()

    monkeypatch.setattr(PasswordKdf, "stretch", stretch)
    stretcher = Stretcher()
    admitted = [
        asyncio.create_task(stretcher.stretch(DEFAULT_KDF, str(n)))
        for n in range(2 + MAX_WAITING_PASSWORDS)
    ]
    await asyncio.sleep(0)
    try:
        for _ in range(3):
            with pytest.raises(BusyError) as refused:
                await stretcher.stretch(DEFAULT_KDF, "one more")
            assert int(refused.value.headers["Retry-After"]) > 0
        admitted[-1].cancel()
        await asyncio.sleep(0)
        another = asyncio.create_task(stretcher.stretch(DEFAULT_KDF, "in its place"))
        await asyncio.sleep(0)
    finally:
        go_on.set()
    assert await asyncio.gather(*admitted[:-1]) == [
        b"%d" % n for n in range(1 + MAX_WAITING_PASSWORDS)
    ]
    assert await another == b"in its place"
    assert await stretcher.stretch(DEFAULT_KDF, "later") == b"later"


@pytest.mark.parametrize(
    ("member", "most"), [("memory_kib", 1024 * 1024), ("passes", 16), ("lanes", 16)]
)
def test_the_costs_of_a_password_have_bounds(member: str, most: int) -> None:
    for cost in (most, most + 1, 0, -1):
        stored = msgspec.json.encode({"salt": "AAAAAAAAAAA=", member: cost})
        if cost == most:
            assert getattr(msgspec.json.decode(stored, type=PasswordKdf), member) == most
        else:
            with pytest.raises(msgspec.DecodeError):
                msgspec.json.decode(stored, type=PasswordKdf)


def test_names_of_the_server_are_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALEKEEPER_ALLOWED_HOSTS", "tales.lan, nas")
    settings = Settings(_env_file=None)  # type: ignore[call-arg]  # pydantic-settings' own argument
    assert settings.allowed_hosts == ("tales.lan", "nas")


def test_a_crash_leaves_no_memory_on_the_disk() -> None:
    pytest.importorskip("resource", reason="there are no such limits here")
    code = (
        "import resource, sys\n"
        "from backend.cli import main\n"
        "main(['rotate-keys', 'data'])\n"  # makes no sense, and so does nothing
        "print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "(0, 0)"
