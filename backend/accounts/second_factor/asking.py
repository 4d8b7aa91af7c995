"""The second factor as routes ask for it: at the door, and before a factor is changed."""

from __future__ import annotations

from functools import partial
from typing import Any

from litestar import Request

from backend.accounts.errors import WrongSecondFactorError
from backend.accounts.identity import Identity
from backend.accounts.recent_activity.log import ActivityLog, event_of
from backend.accounts.second_factor.check import Asked, Proof, SecondFactorCheck
from backend.accounts.second_factor.passkeys import Site, site_of
from backend.accounts.second_factor.schemas import SecondFactorConfirmation
from backend.accounts.service import AccountService, Unlocked
from backend.accounts.throttle import Throttle
from backend.database.engine import Database
from backend.settings import Settings

AnyRequest = Request[Any, Any, Any]


class SecondFactorGate:
    """Lets through who proves a second factor, and who has none."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        throttle: Throttle,
        accounts: AccountService,
        activity: ActivityLog,
    ) -> None:
        self._check = SecondFactorCheck(database, throttle)
        self._throttle = throttle
        self._accounts = accounts
        self._activity = activity
        self._public_origin = settings.public_origin

    def site(self, request: AnyRequest) -> Site:
        """The page's address as passkeys know it. Raises `PasskeyUnavailableError`."""
        return site_of(self._origin(request))

    async def enter(
        self, request: AnyRequest, unlocked: Unlocked, proof: Proof, *, address: str
    ) -> str:
        """Ask at a sign-in, after the password was right; returns what the entry says of it.

        Raises `SecondFactorRequiredError`, `WrongSecondFactorError`, `TooManyAttemptsError`,
        `TamperedAccountError`.
        """
        asked = Asked(unlocked.user.id, unlocked.current, b"sign-in", self._origin(request))
        admit = partial(self._throttle.admit_second_factor, unlocked.name, address=address)
        try:
            return await self._check.check(asked, proof, admit) or ""
        except WrongSecondFactorError:
            await self._activity.note_unlocked(unlocked, event_of(request, "wrong_second_factor"))
            raise

    async def confirm(
        self, request: AnyRequest, identity: Identity, said: SecondFactorConfirmation
    ) -> None:
        """Ask a signed-in user for the password, and for a second factor if one is on.

        Raises what `AccountService.confirm_password` raises, and as `enter` does.
        """
        await self._accounts.confirm_password(identity, said.password)
        purpose = b"confirm/" + identity.slot_id.bytes
        asked = Asked(identity.user_id, identity.current, purpose, self._origin(request))
        admit = partial(self._throttle.admit_second_confirmation, identity.user_id)
        try:
            await self._check.check(asked, Proof(said.otp, said.passkey), admit)
        except WrongSecondFactorError:
            await self._activity.note(identity, event_of(request, "wrong_second_factor"))
            raise

    def _origin(self, request: AnyRequest) -> str:
        return self._public_origin or f"{request.url.scheme}://{request.url.netloc}"
