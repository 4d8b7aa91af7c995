"""Asking for the second factor: at a sign-in, and before a factor is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts import repository
from backend.accounts.errors import (
    PasskeyUnavailableError,
    SecondFactorRequiredError,
    WrongSecondFactorError,
)
from backend.accounts.keyring import UserKey, check_current, open_checked_sealer
from backend.accounts.models import FactorKind, SecondFactor, User
from backend.accounts.second_factor import challenges, one_time_codes, passkeys, totp
from backend.accounts.second_factor.passkeys import PasskeyRejectedError, Site, site_of
from backend.accounts.second_factor.rows import (
    Factors,
    lock_factors,
    open_passkey,
    open_secret,
    read_factors,
    renew_digest,
)
from backend.accounts.throttle import Attempt, Throttle
from backend.database.base import now
from backend.database.engine import Database
from backend.vault.sealing import Sealer

WRONG = "It is wrong, was used before, or came too late. Try the next one."


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request brings: a code of either kind, or what the browser says of a passkey."""

    otp: str | None = None
    passkey: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return self.otp is not None or self.passkey is not None

    @property
    def is_guessable(self) -> bool:
        """Whether it can be found by trying: the six digits of a TOTP alone can."""
        return self.otp is not None and totp.CODE.fullmatch(_plain(self.otp)) is not None


class Admit(Protocol):
    """Counts an attempt before checking it. Raises `TooManyAttemptsError`."""

    async def __call__(self, *, guessable: bool) -> Attempt:
        """`guessable` as in `Proof.is_guessable`."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose second factor is asked for, where, and for what.

    `purpose` binds a passkey's challenge to what it was made for, `origin` is the page's.
    """

    user_id: UUID
    current: UserKey
    purpose: bytes
    origin: str


class SecondFactorCheck:
    """Checks proofs. Each works once, also where two requests bring it at the same time."""

    def __init__(self, database: Database, throttle: Throttle) -> None:
        self._database = database
        self._throttle = throttle

    async def check(self, asked: Asked, proof: Proof, admit: Admit) -> FactorKind | None:
        """Which factor was used; None if the account has none.

        Raises `SecondFactorRequiredError`, which says what can be used, without a proof, and
        `WrongSecondFactorError`, `TooManyAttemptsError`, `TamperedAccountError`.
        """
        async with self._database.read() as session:
            user = await repository.get_user(session, asked.user_id)
            factors = await read_factors(session, user)
            check_current(user, asked.current)
            rows = await repository.data_keys(session, asked.user_id)
            sealer = open_checked_sealer(user, rows, user_key=asked.current.key)
        if not factors.is_on:
            return None
        if factors.passkeys:
            await asyncio.to_thread(passkeys.load)
        if not proof:
            raise self._required(asked, factors, sealer)
        attempt = await admit(guessable=proof.is_guessable)
        async with self._database.write() as session:
            user, factors = await lock_factors(session, asked.user_id, asked.current)
            used = await self._use(session, asked, user, factors, sealer, proof)
        await self._throttle.forgive(attempt)
        return used

    def _required(
        self, asked: Asked, factors: Factors, sealer: Sealer
    ) -> SecondFactorRequiredError:
        kinds: list[FactorKind] = ["totp"] if factors.totp else []
        options = None
        site = _site(asked)
        if site is not None:
            known = [open_passkey(sealer, row) for row in factors.passkeys]
            here = [each for each in known if each.rp_id == site.rp_id]
            if here:
                kinds.append("passkey")
                challenge = challenges.new_challenge(asked.current.key, asked.purpose, at=now())
                options = passkeys.authentication_options(site, challenge=challenge, known=here)
        if factors.codes:
            kinds.append("one_time_code")
        return SecondFactorRequiredError(kinds, options)

    async def _use(
        self,
        session: AsyncSession,
        asked: Asked,
        user: User,
        factors: Factors,
        sealer: Sealer,
        proof: Proof,
    ) -> FactorKind:
        at = now()
        if proof.passkey is not None and factors.passkeys:
            _use_passkey(asked, factors.passkeys, sealer, proof.passkey, at)
            return "passkey"
        if proof.otp is None:
            raise WrongSecondFactorError(WRONG)
        code = _plain(proof.otp)
        if proof.is_guessable:
            use_totp(factors.totp, sealer, code, at)
            return "totp"
        wanted = one_time_codes.digest_of(code)
        found = [row for row in factors.codes if compare_digest(open_secret(sealer, row), wanted)]
        if not found:
            raise WrongSecondFactorError(WRONG)
        await session.delete(found[0])
        await renew_digest(session, user, asked.current.key)
        return "one_time_code"


def use_totp(row: SecondFactor | None, sealer: Sealer, code: str, at: datetime) -> None:
    """Take a TOTP's code, once. Raises `WrongSecondFactorError`."""
    if row is None:
        raise WrongSecondFactorError(WRONG)
    step = totp.step_of(open_secret(sealer, row).decode(), _plain(code), at=at)
    if step is None or step <= row.counter:
        raise WrongSecondFactorError(WRONG)
    row.counter, row.last_used_at = step, at


def _use_passkey(
    asked: Asked,
    rows: Sequence[SecondFactor],
    sealer: Sealer,
    credential: dict[str, Any],
    at: datetime,
) -> None:
    try:
        credential_id, challenge = passkeys.answered(credential)
        issued = challenges.issued_at(challenge, asked.current.key, asked.purpose, at=at)
        site = _site(asked)
        for row in rows:
            passkey = open_passkey(sealer, row)
            if passkey.credential_id != credential_id or site is None or issued is None:
                continue
            if issued <= row.counter:
                break
            row.sign_count = passkeys.verify_authentication(
                credential,
                site=site,
                challenge=challenge,
                passkey=passkey,
                sign_count=row.sign_count,
            )
            row.counter, row.last_used_at = issued, at
            return
    except PasskeyRejectedError as error:
        raise WrongSecondFactorError(WRONG) from error
    raise WrongSecondFactorError(WRONG)


def _site(asked: Asked) -> Site | None:
    try:
        return site_of(asked.origin)
    except PasskeyUnavailableError:
        return None


def _plain(code: str) -> str:
    return "".join(code.split())
