"""Passwords, account names and their limits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unicodedata

import msgspec
import pytest

from backend.accounts.auth.credentials import MAX_WAITING_PASSWORDS, Stretcher, check_password
from backend.accounts.auth.names import normalise_name
from backend.accounts.errors import BusyError, WeakPasswordError
from backend.vault.slots import DEFAULT_KDF, PasswordKdf


@pytest.mark.parametrize(
    "password", ["eight ch", "x" * 6 + "yz", "ключ от дома", "è" * 8, "a b " * 64]
)
def test_a_password_has_8_to_256_characters(password: str) -> None:
    assert check_password(password, name="ada") == password


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "at least 8"),
        ("seven c", "at least 8"),
        ("a b " * 64 + "c", "at most 256"),
        ("password", "very common password"),
        ("PassWord", "very common password"),
        ("12345678", "very common password"),
        ("Ada Lovelace", "very common password"),
        (" ada lovelace".strip(), "very common password"),
    ],
)
def test_a_refused_password_has_a_reason(password: str, why: str) -> None:
    with pytest.raises(WeakPasswordError, match=why):
        check_password(password, name="Ada Lovelace")


def test_the_length_is_counted_after_composition() -> None:
    composed, decomposed = "zoë" * 3, unicodedata.normalize("NFD", "zoë" * 3)
    assert composed != decomposed
    assert check_password(decomposed, name="ada") == composed
    with pytest.raises(WeakPasswordError):
        check_password(unicodedata.normalize("NFD", "ë" * 7), name="ada")


@pytest.mark.parametrize(
    "name", ["Zoë", "zoë", "ZOË", " Zoë ", "Zoe\u0308", "ＺＯＥ\u0308", "\u3000zoë"]
)
def test_spellings_of_one_name_are_equal(name: str) -> None:
    assert normalise_name(name) == normalise_name("zoë")


def test_names_that_differ_stay_apart() -> None:
    assert normalise_name("zoe") != normalise_name("zoë")


@pytest.mark.anyio
async def test_password_checks_beyond_the_queue_are_refused(
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
    expected = [b"%d" % n for n in range(1 + MAX_WAITING_PASSWORDS)]
    assert await asyncio.gather(*admitted[:-1]) == expected
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


def test_a_crash_leaves_no_memory_on_the_disk() -> None:
    pytest.importorskip("resource", reason="there are no such limits here")
    code = (
        "import resource, sys\n"
        "from backend.cli import main\n"
        "main(['rotate-keys', 'data'])\n"  # an invalid command, which does nothing
        "print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "(0, 0)"
