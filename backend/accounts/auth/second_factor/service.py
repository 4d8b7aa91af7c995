"""Setup and removal of second factors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pyotp
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.second_factor import passkeys
from backend.accounts.auth.second_factor.factors import (
    Factors,
    delete_factors,
    find_unconfirmed,
    hash_code,
    lock_factors,
    make_one_time_codes,
    make_totp_uri,
    open_passkey,
    open_secret,
    read_factors,
    renew_digest,
    use_totp,
)
from backend.accounts.auth.second_factor.passkeys import PasskeyRejectedError, Site
from backend.accounts.auth.throttle import forget_addresses
from backend.accounts.errors import (
    PasskeyNotFoundError,
    PasskeyRefusedError,
    SecondFactorOffError,
    TooManyPasskeysError,
)
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import renew_user_key
from backend.accounts.keys.slots import refuse_older_root
from backend.accounts.models import FACTOR_LABEL, FACTOR_SECRET, FactorKind, SecondFactor, User
from backend.accounts.schemas import PasskeyView, SecondFactorsView, TotpSetUp, TotpView
from backend.core.qr_codes import make_qr_rows
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.vault.root import RootKeys
from backend.vault.sealing import Sealer

MAX_PASSKEYS = 10
CHALLENGE_BYTES = 32
SETUP_TIMEOUT = timedelta(minutes=10)
LATE_ADVICE = "It was not begun here, or more than 10 minutes ago. Begin again."


class SecondFactorService:
    """The second factors of the signed-in account.

    Before a setup begins or a factor is removed, the caller confirms the password and the second
    factor. The first factor comes with ten one-time codes, and the account's other sessions end. So
    each remaining session has either proved a factor or set up the first one.
    """

    def __init__(self, database: Database, root: RootKeys, open_keys: OpenKeys) -> None:
        self._database = database
        self._root = root
        self._open_keys = open_keys

    async def show(self, identity: Identity) -> SecondFactorsView:
        """Raises `TamperedAccountError`."""
        async with self._database.read() as session:
            user = await repository.get_user(session, identity.user_id)
            factors = await read_factors(session, user)
        totp_view = None
        if factors.totp is not None:
            totp_view = TotpView(
                created_at=factors.totp.created_at, last_used_at=factors.totp.last_used_at
            )
        return SecondFactorsView(
            totp=totp_view,
            passkeys=[_make_view(identity.sealer, row) for row in factors.passkeys],
            one_time_codes=len(factors.codes),
        )

    async def begin_totp(self, identity: Identity, *, name: str) -> TotpSetUp:
        """Make a secret for an authenticator app. It becomes active when a code is confirmed."""
        secret = pyotp.random_base32()  # 160 bits, the length that RFC 4226 recommends
        uri = make_totp_uri(secret, name)
        qr = await asyncio.to_thread(make_qr_rows, uri)
        async with self._database.write() as session:
            await self._lock(session, identity)
            await delete_factors(session, identity.user_id, "totp", only_unconfirmed=True)
            session.add(_make_row(identity.sealer, "totp", secret.encode()))
        return TotpSetUp(secret=secret, uri=uri, qr=qr)

    async def finish_totp(self, identity: Identity, code: str) -> list[str] | None:
        """Activate the app, which replaces an older one.

        Return one-time codes if it is the first factor. Raises `WrongSecondFactorError`,
        `SecondFactorOffError`, `TamperedAccountError`.
        """
        at = now()
        async with self._change_factors(identity) as (session, factors):
            row = await find_unconfirmed(
                session, identity.user_id, "totp", since=at - SETUP_TIMEOUT
            )
            if row is None:
                raise SecondFactorOffError(LATE_ADVICE)
            use_totp(row, identity.sealer, code, at)
            if factors.totp is not None:
                await session.delete(factors.totp)
            return await _switch_on(session, identity, row, factors)

    async def remove_totp(self, identity: Identity) -> None:
        """Remove the app. Raises `SecondFactorOffError`, `TamperedAccountError`."""
        async with self._change_factors(identity) as (session, factors):
            if factors.totp is None:
                raise SecondFactorOffError("No authenticator app is set up.")
            await _remove(session, factors.totp, is_last=not factors.passkeys)

    async def renew_codes(self, identity: Identity) -> list[str]:
        """Replace the one-time codes. Raises `SecondFactorOffError`, `TamperedAccountError`."""
        async with self._change_factors(identity) as (session, factors):
            if not factors.is_on:
                raise SecondFactorOffError("Set up an app or a passkey first.")
            return await _replace_codes(session, identity)

    async def begin_passkey(self, identity: Identity, site: Site, *, name: str) -> dict[str, Any]:
        """Begin a passkey. Raises `TooManyPasskeysError`, `TamperedAccountError`."""
        await asyncio.to_thread(passkeys.load_library)
        challenge, sealer = os.urandom(CHALLENGE_BYTES), identity.sealer
        async with self._database.write() as session:
            _, factors = await self._lock(session, identity)
            _check_room(factors)
            await delete_factors(session, identity.user_id, "passkey", only_unconfirmed=True)
            session.add(_make_row(sealer, "passkey", challenge))
        known = [open_passkey(sealer, row) for row in factors.passkeys]
        return passkeys.make_registration_options(
            site, user_id=identity.user_id, name=name, challenge=challenge, known=known
        )

    async def finish_passkey(
        self, identity: Identity, site: Site, credential: dict[str, Any], *, label: str
    ) -> tuple[PasskeyView, list[str] | None]:
        """Add the passkey that the browser made. Return one-time codes if it is the first factor.

        Raises `PasskeyRefusedError`, `TooManyPasskeysError`, `TamperedAccountError`.
        """
        await asyncio.to_thread(passkeys.load_library)
        since, sealer = now() - SETUP_TIMEOUT, identity.sealer
        async with self._change_factors(identity) as (session, factors):
            _check_room(factors)
            row = await find_unconfirmed(session, identity.user_id, "passkey", since=since)
            if row is None:
                raise PasskeyRefusedError(LATE_ADVICE)
            try:
                made, row.sign_count = passkeys.verify_registration(
                    credential, site=site, challenge=open_secret(sealer, row)
                )
            except PasskeyRejectedError as error:
                raise PasskeyRefusedError(
                    "The browser's response is not valid. Try again."
                ) from error
            known = {open_passkey(sealer, each).credential_id for each in factors.passkeys}
            if made.credential_id in known:
                raise PasskeyRefusedError("This passkey is already added to the account.")
            row.sealed_secret = sealer.seal_bytes(FACTOR_SECRET, row.id, msgspec.json.encode(made))
            row.sealed_label = sealer.seal(FACTOR_LABEL, row.id, label)
            codes = await _switch_on(session, identity, row, factors)
        return _make_view(sealer, row), codes

    async def rename_passkey(
        self, identity: Identity, passkey_id: UUID, *, label: str
    ) -> PasskeyView:
        """Raises `PasskeyNotFoundError`."""
        async with self._database.write() as session:
            row = await _get_passkey(session, identity, passkey_id)
            row.sealed_label = identity.sealer.seal(FACTOR_LABEL, row.id, label)
        return _make_view(identity.sealer, row)

    async def remove_passkey(self, identity: Identity, passkey_id: UUID) -> str:
        """Remove a passkey, and return its name.

        Raises `PasskeyNotFoundError`, `TamperedAccountError`.
        """
        async with self._change_factors(identity) as (session, factors):
            row = await _get_passkey(session, identity, passkey_id)
            label = _open_label(identity.sealer, row)
            is_last = factors.totp is None and len(factors.passkeys) == 1
            await _remove(session, row, is_last=is_last)
        return label

    async def _lock(self, session: AsyncSession, identity: Identity) -> tuple[User, Factors]:
        await refuse_older_root(session, self._root)
        return await lock_factors(session, identity.user_id, identity.current)

    @asynccontextmanager
    async def _change_factors(
        self, identity: Identity
    ) -> AsyncGenerator[tuple[AsyncSession, Factors]]:
        """Open a transaction that changes the account's factors and its user key.

        With the new user key, restored copies of older rows open nothing.
        """
        async with self._database.write() as session:
            user, factors = await self._lock(session, identity)
            yield session, factors
            await renew_digest(session, user, identity.user_key)
            await renew_user_key(session, user, identity.user_key, root=self._root)
        self._open_keys.drop(identity.user_id)
        await self._database.log.empty_now()


async def _switch_on(
    session: AsyncSession, identity: Identity, row: SecondFactor, before: Factors
) -> list[str] | None:
    """Activate a factor. Return one-time codes if it is the first."""
    row.is_on = True
    if before.is_on:
        return None
    codes = await _replace_codes(session, identity)
    await repository.delete_slots(session, identity.user_id, "session", but=identity.slot_id)
    # An address becomes known only by a sign-in with a second factor.
    await forget_addresses(session, identity.user_id)
    return codes


async def _remove(session: AsyncSession, row: SecondFactor, *, is_last: bool) -> None:
    await session.delete(row)
    if is_last:
        await session.flush()
        await delete_factors(session, row.user_id)


async def _replace_codes(session: AsyncSession, identity: Identity) -> list[str]:
    await delete_factors(session, identity.user_id, "one_time_code")
    codes = make_one_time_codes()
    for code in codes:
        row = _make_row(identity.sealer, "one_time_code", hash_code(code))
        row.is_on = True
        session.add(row)
    return codes


async def _get_passkey(session: AsyncSession, identity: Identity, passkey_id: UUID) -> SecondFactor:
    row = await session.scalar(
        select(SecondFactor).where(
            SecondFactor.id == passkey_id,
            SecondFactor.user_id == identity.user_id,
            SecondFactor.kind == "passkey",
            SecondFactor.is_on,
        )
    )
    if row is None:
        raise PasskeyNotFoundError
    return row


def _check_room(factors: Factors) -> None:
    if len(factors.passkeys) >= MAX_PASSKEYS:
        raise TooManyPasskeysError(f"The limit is {MAX_PASSKEYS}. Remove one first.")


def _make_row(sealer: Sealer, kind: FactorKind, secret: bytes) -> SecondFactor:
    row_id = new_id()
    return SecondFactor(
        id=row_id,
        user_id=sealer.user_id,
        kind=kind,
        is_on=False,
        sealed_secret=sealer.seal_bytes(FACTOR_SECRET, row_id, secret),
        created_at=now(),
    )


def _open_label(sealer: Sealer, row: SecondFactor) -> str:
    return "" if row.sealed_label is None else sealer.open(FACTOR_LABEL, row.id, row.sealed_label)


def _make_view(sealer: Sealer, row: SecondFactor) -> PasskeyView:
    return PasskeyView(
        id=row.id,
        label=_open_label(sealer, row),
        site=open_passkey(sealer, row).rp_id,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
    )
