"""Checks of the second factor: at sign-in, and before a factor is changed.

Each proof works once, even if two requests send it at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from typing import Any
from uuid import UUID

from backend.accounts import repository
from backend.accounts.auth.identity import Identity
from backend.accounts.auth.second_factor import passkeys
from backend.accounts.auth.second_factor.factors import (
    TOTP_CODE,
    WRONG_CODE_ADVICE,
    Factors,
    hash_code,
    lock_factors,
    open_passkey,
    open_secret,
    read_factors,
    renew_digest,
    strip_code,
    use_totp,
)
from backend.accounts.auth.second_factor.passkeys import PasskeyRejectedError, Site, parse_site
from backend.accounts.auth.throttle import SignInAttempt, Throttle
from backend.accounts.errors import (
    PasskeyUnavailableError,
    SecondFactorRequiredError,
    WrongSecondFactorError,
)
from backend.accounts.keys.keyring import UserKey, check_current, open_checked_sealer
from backend.accounts.models import FactorKind, SecondFactor
from backend.accounts.profile.activity import ActivityLog
from backend.accounts.schemas import LogIn, SecondFactorConfirmation
from backend.accounts.service import AccountService, UnlockedAccount
from backend.database.base import now
from backend.database.engine import Database
from backend.http.schemas import AnyRequest
from backend.settings import Settings
from backend.vault.sealing import Sealer

Proof = LogIn | SecondFactorConfirmation
"""The proof in a request: a code of either kind in `otp`, or the browser's response in
`passkey`."""

Admit = Callable[..., Awaitable[SignInAttempt]]
"""Counts an attempt before it is checked. `guessable` is true for six digits."""


@dataclass(frozen=True, slots=True)
class _FactorRequest:
    """A request for an account's second factor.

    `purpose` binds a passkey's challenge to its use. `site` is None if browsers have no passkeys at
    this address.
    """

    user_id: UUID
    current: UserKey
    purpose: bytes
    site: Site | None


class SecondFactorGate:
    """Admits users who prove a second factor, and users without one."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        throttle: Throttle,
        accounts: AccountService,
        activity: ActivityLog,
    ) -> None:
        self._database = database
        self._throttle = throttle
        self._accounts = accounts
        self._activity = activity
        self._public_origin = settings.public_origin

    def site(self, request: AnyRequest) -> Site:
        """Raises `PasskeyUnavailableError`."""
        return parse_site(self._public_origin or f"{request.url.scheme}://{request.url.netloc}")

    async def enter(
        self, request: AnyRequest, unlocked: UnlockedAccount, proof: LogIn, *, address: str
    ) -> None:
        """Check the second factor after the right password.

        Raises `SecondFactorRequiredError`, `WrongSecondFactorError`, `TooManyAttemptsError`,
        `TamperedAccountError`.
        """
        asked = self._make_request(request, unlocked.user.id, unlocked.current, b"sign-in")
        admit = partial(self._throttle.admit_second_factor, unlocked.name, address=address)
        try:
            await self._check(asked, proof, admit)
        except WrongSecondFactorError:
            await self._activity.note_sign_in(request, unlocked, "wrong_second_factor")
            raise
        # The whole sign-in succeeded, so guesses from elsewhere must not delay this address.
        await self._throttle.remember(unlocked.user.id, unlocked.name, address=address)

    async def confirm(
        self, request: AnyRequest, identity: Identity, proof: SecondFactorConfirmation
    ) -> None:
        """Check a signed-in user's password, and the second factor if one is active.

        Raises the errors of `AccountService.confirm_password` and of `enter`.
        """
        await self._accounts.confirm_password(identity, proof.password)
        purpose = b"confirm/" + identity.slot_id.bytes
        asked = self._make_request(request, identity.user_id, identity.current, purpose)
        admit = partial(self._throttle.admit_second_confirmation, identity.user_id)
        try:
            await self._check(asked, proof, admit)
        except WrongSecondFactorError:
            await self._activity.note(request, "wrong_second_factor")
            raise

    def _make_request(
        self, request: AnyRequest, user_id: UUID, current: UserKey, purpose: bytes
    ) -> _FactorRequest:
        try:
            site = self.site(request)
        except PasskeyUnavailableError:
            site = None
        return _FactorRequest(user_id, current, purpose, site)

    async def _check(self, asked: _FactorRequest, proof: Proof, admit: Admit) -> None:
        async with self._database.read() as session:
            user = await repository.get_user(session, asked.user_id)
            factors = await read_factors(session, user)
            check_current(user, asked.current)
            rows = await repository.list_data_keys(session, asked.user_id)
            sealer = open_checked_sealer(user, rows, user_key=asked.current.key)
        if not factors.is_on:
            return
        if factors.passkeys:
            await asyncio.to_thread(passkeys.load_library)
        if proof.otp is None and proof.passkey is None:
            raise _make_required_error(asked, factors, sealer)
        code = strip_code(proof.otp or "")
        # Only the six digits of a TOTP can be guessed.
        guessable = TOTP_CODE.fullmatch(code) is not None
        attempt = await admit(guessable=guessable)
        async with self._database.write() as session:
            user, factors = await lock_factors(session, asked.user_id, asked.current)
            if proof.passkey is not None and factors.passkeys:
                _use_passkey(asked, factors, sealer, proof.passkey)
            elif guessable:
                use_totp(factors.totp, sealer, code, now())
            else:
                row = _find_one_time_code(factors, sealer, code)
                await session.delete(row)
                await renew_digest(session, user, asked.current.key)
        await self._throttle.forgive(attempt)


def _make_required_error(
    asked: _FactorRequest, factors: Factors, sealer: Sealer
) -> SecondFactorRequiredError:
    kinds: list[FactorKind] = ["totp"] if factors.totp else []
    options = None
    if asked.site is not None:
        known = [open_passkey(sealer, row) for row in factors.passkeys]
        here = [each for each in known if each.rp_id == asked.site.rp_id]
        if here:
            kinds.append("passkey")
            challenge = passkeys.make_challenge(asked.current.key, asked.purpose, at=now())
            options = passkeys.make_authentication_options(
                asked.site, challenge=challenge, known=here
            )
    if factors.codes:
        kinds.append("one_time_code")
    return SecondFactorRequiredError(kinds, options)


def _find_one_time_code(factors: Factors, sealer: Sealer, code: str) -> SecondFactor:
    wanted = hash_code(code)
    found = [row for row in factors.codes if compare_digest(open_secret(sealer, row), wanted)]
    if not found:
        raise WrongSecondFactorError(WRONG_CODE_ADVICE)
    return found[0]


def _use_passkey(
    asked: _FactorRequest, factors: Factors, sealer: Sealer, credential: dict[str, Any]
) -> None:
    at = now()
    try:
        credential_id, challenge = passkeys.read_response(credential)
        issued = passkeys.read_issue_time(challenge, asked.current.key, asked.purpose, at=at)
        for row in factors.passkeys:
            passkey = open_passkey(sealer, row)
            if passkey.credential_id != credential_id or asked.site is None or issued is None:
                continue
            if issued <= row.counter:
                break
            row.sign_count = passkeys.verify_authentication(
                credential,
                site=asked.site,
                challenge=challenge,
                passkey=passkey,
                sign_count=row.sign_count,
            )
            row.counter, row.last_used_at = issued, at
            return
    except PasskeyRejectedError as error:
        raise WrongSecondFactorError(WRONG_CODE_ADVICE) from error
    raise WrongSecondFactorError(WRONG_CODE_ADVICE)
