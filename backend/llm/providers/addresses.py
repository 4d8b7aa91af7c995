"""`/admin/provider-addresses`: hosts and ports that administrators allow for providers."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import delete as delete_rows
from sqlalchemy import func, select

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.profile.administration import require_administrator
from backend.accounts.repository import lock_accounts
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.errors import ConflictError, NotFoundError
from backend.generation.client.network import AllowedAddress
from backend.http.schemas import RAISES, make_struct
from backend.llm.models import ProviderAddress
from backend.llm.user_models import UserModels

log = get_logger(__name__)

MAX_ADDRESSES = 100

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class ProviderAddressNotFoundError(NotFoundError):
    """No allowed address has this id."""

    slug, title = "provider-address-not-found", "Allowed address not found"


class NetworksAreSetError(ConflictError):
    """`TALEKEEPER_PROVIDER_NETWORKS` is set, so addresses cannot be changed through the API."""

    slug, title = "provider-networks-set", "Allowed addresses are set in the configuration"


class TooManyAddressesError(ConflictError):
    """The installation has the maximum number of allowed addresses."""

    slug, title = "too-many-provider-addresses", "Too many allowed addresses"


class NewProviderAddress(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A host, as a name or an address, and the one port that is allowed there."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    port: Port


class ProviderAddressView(msgspec.Struct, kw_only=True):
    """An allowed host and port."""

    id: UUID
    host: str
    port: int
    created_at: datetime


class ProviderAddresses(msgspec.Struct, kw_only=True):
    """All allowed addresses, oldest first.

    If `networks_are_set`, `TALEKEEPER_PROVIDER_NETWORKS` decides, and these addresses are ignored.
    """

    items: list[ProviderAddressView]
    networks_are_set: bool


class ProviderAddressService:
    """The addresses that administrators allow in addition to the public internet."""

    def __init__(self, database: Database, user_models: UserModels) -> None:
        self._database = database
        self._user_models = user_models

    async def list_all(self) -> ProviderAddresses:
        async with self._database.read() as session:
            rows = await session.scalars(select(ProviderAddress).order_by(ProviderAddress.id))
            return ProviderAddresses(
                items=[make_struct(ProviderAddressView, row) for row in rows],
                networks_are_set=self._user_models.network.decides_alone,
            )

    async def allow(self, identity: Identity, new: NewProviderAddress) -> ProviderAddressView:
        """Allow providers at a host and port. If it is allowed already, nothing changes."""
        network = self._user_models.network
        if network.decides_alone:
            raise NetworksAreSetError("Change TALEKEEPER_PROVIDER_NETWORKS and restart.")
        wanted = network.allowable(new.host, new.port)
        async with self._database.write() as session:
            await lock_accounts(session)
            row = await session.scalar(
                select(ProviderAddress).where(
                    ProviderAddress.host == wanted.host, ProviderAddress.port == wanted.port
                )
            )
            is_new = row is None
            if row is None:
                count = await session.scalar(select(func.count()).select_from(ProviderAddress))
                if (count or 0) >= MAX_ADDRESSES:
                    raise TooManyAddressesError(f"The limit is {MAX_ADDRESSES}. Remove one first.")
                row = ProviderAddress(host=wanted.host, port=wanted.port)
                session.add(row)
                await session.flush()
        if is_new:
            await self._count_from_now(identity, wanted, "allowed")
        return make_struct(ProviderAddressView, row)

    async def refuse(self, identity: Identity, address_id: UUID) -> None:
        """Delete an allowed address. Running replies continue."""
        query = delete_rows(ProviderAddress).where(ProviderAddress.id == address_id)
        returned = query.returning(ProviderAddress.host, ProviderAddress.port)
        async with self._database.write() as session:
            deleted = (await session.execute(returned)).one_or_none()
        if deleted is None:
            raise ProviderAddressNotFoundError
        await self._count_from_now(identity, AllowedAddress(*deleted), "refused")

    async def _count_from_now(
        self, identity: Identity, address: AllowedAddress, state: str
    ) -> None:
        """Log a change, and apply it in this process immediately."""
        log.info(
            "provider.address_changed",
            address=str(address),
            state=state,
            user_id=identity.user_id,
        )
        async with self._database.read() as session:
            await self._user_models.read_shared(session)


class ProviderAddressController(Controller):
    """Hosts and ports that providers may use, in addition to the public internet."""

    path = "/admin/provider-addresses"
    tags = ("Administration",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="List allowed addresses")
    async def list_provider_addresses(
        self, provider_addresses: NamedDependency[ProviderAddressService]
    ) -> ProviderAddresses:
        """All hosts and ports that providers may use, in addition to the public internet."""
        return await provider_addresses.list_all()

    @post(
        opt={RAISES: (NetworksAreSetError, TooManyAddressesError)},
        summary="Allow an address",
    )
    async def allow_provider_address(
        self,
        data: JSONBody[NewProviderAddress],
        identity: NamedDependency[Identity],
        provider_addresses: NamedDependency[ProviderAddressService],
    ) -> ProviderAddressView:
        """Allow providers of all accounts at one host and port, over http:// as well.

        Cloud metadata addresses, link-local addresses and Talekeeper's own port can't be allowed.
        """
        return await provider_addresses.allow(identity, data)

    @delete(
        "/{address_id:uuid}",
        opt={RAISES: (ProviderAddressNotFoundError,)},
        summary="Remove an allowed address",
    )
    async def refuse_provider_address(
        self,
        address_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        provider_addresses: NamedDependency[ProviderAddressService],
    ) -> None:
        """Delete an allowed address. Providers at this address are no longer used."""
        await provider_addresses.refuse(identity, address_id)
