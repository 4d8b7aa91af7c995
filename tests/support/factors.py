"""Accounts with second factors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import httpx
from pyotp.totp import TOTP

from tests.support.authenticator import SoftPasskey
from tests.support.server import PASSWORD, Account, Running, ok

FACTORS = "/api/v1/me/second-factors"
SESSIONS = "/api/v1/sessions"


@dataclass(frozen=True)
class App:
    """An authenticator app with one account in it, and the one-time codes that came with it."""

    secret: str
    codes: list[str]

    def code(self, at: datetime) -> str:
        return TOTP(self.secret).at(at)


async def set_up_app(account: Account, at: datetime, **proof: Any) -> App:
    """Switch an authenticator app on."""
    body = {"password": PASSWORD, **proof}
    begun = ok(await account.client.post(f"{FACTORS}/totp", json=body), 201)
    code = TOTP(begun["secret"]).at(at)
    path = f"{FACTORS}/totp/confirmation"
    done = ok(await account.client.post(path, json={"code": code}), 201)
    return App(begun["secret"], done["codes"] or [])


class HasUrl(Protocol):
    """A server, as far as passkeys go."""

    @property
    def url(self) -> str: ...


def at_localhost(server: HasUrl) -> dict[str, str]:
    """Headers of a page that was opened by a name: addresses have no passkeys."""
    return {"Host": server.url.removeprefix("http://").replace("127.0.0.1", "localhost")}


def new_passkey(server: HasUrl) -> SoftPasskey:
    return SoftPasskey(f"http://{at_localhost(server)['Host']}")


async def begin_passkey(
    server: HasUrl, account: Account, password: str = PASSWORD, **proof: Any
) -> dict[str, Any]:
    """What the browser makes a passkey from."""
    body, headers = {"password": password, **proof}, at_localhost(server)
    answer = await account.client.post(f"{FACTORS}/passkeys", json=body, headers=headers)
    options: dict[str, Any] = ok(answer, 201)["options"]
    return options


async def finish_passkey(
    server: HasUrl, account: Account, credential: dict[str, Any], label: str = "Blue key"
) -> httpx.Response:
    path, headers = f"{FACTORS}/passkeys/confirmation", at_localhost(server)
    body = {"credential": credential, "label": label}
    return await account.client.post(path, json=body, headers=headers)


async def add_passkey(
    server: HasUrl, account: Account, label: str = "Blue key", **proof: Any
) -> tuple[SoftPasskey, dict[str, Any]]:
    """A new passkey of the account's, and what the server said of it."""
    passkey = new_passkey(server)
    options = await begin_passkey(server, account, **proof)
    answer = await finish_passkey(server, account, passkey.create(options), label)
    return passkey, ok(answer, 201)


async def sign_in(
    server: Running, name: str = "Ada", *, address: str = "198.51.100.1", **extra: Any
) -> httpx.Response:
    """The answer to a sign-in from a browser of its own, at `localhost`."""
    headers = {**at_localhost(server), "X-Forwarded-For": address}
    async with server.browser() as client:
        body = {"username": name, "password": PASSWORD, **extra}
        return await client.post(SESSIONS, json=body, headers=headers)


async def recover(
    server: Running, code: str, *, name: str = "Ada", password: str = "an even finer password"
) -> httpx.Response:
    """Set a new password with a recovery code, from a new browser."""
    async with server.browser() as client:
        body = {"username": name, "recovery_code": code, "new_password": password}
        return await client.post("/api/v1/recoveries", json=body)
