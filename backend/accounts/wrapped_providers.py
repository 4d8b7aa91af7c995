"""The installation's providers, as a rotation of the root key sees them.

Their table belongs to `backend.llm`, a layer above; of it, these columns alone are known here.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.types import Id
from backend.logs import get_logger
from backend.vault.root import RootKeys, RootSealBrokenError, Wrapped

log = get_logger(__name__)

PROVIDERS = Table(
    "installation_providers",
    MetaData(),
    Column("id", Id(), primary_key=True),
    Column("root_version", Integer),
    Column("wrapped_config", LargeBinary),
)


def provider_context(provider_id: UUID) -> bytes:
    """What a provider's config is bound to: another row's does not open in its place."""
    return b"installation-provider/" + provider_id.bytes


async def count_stale_providers(session: AsyncSession, current: int) -> int:
    """How many providers are not under this version of the root key."""
    query = select(func.count()).select_from(PROVIDERS)
    return await session.scalar(query.where(PROVIDERS.c.root_version != current)) or 0


async def rewrap_providers(session: AsyncSession, root: RootKeys, *, limit: int) -> int:
    """Put some of the providers under the newest root key; how many there were.

    One that does not open is deleted: nobody can use it, and an administrator can add it again.
    """
    query = select(PROVIDERS).where(PROVIDERS.c.root_version != root.current)
    query = query.order_by(PROVIDERS.c.id).limit(limit).with_for_update()
    rows = (await session.execute(query)).all()
    for row in rows:
        context, is_this = provider_context(row.id), PROVIDERS.c.id == row.id
        try:
            config = root.unwrap(Wrapped(row.root_version, row.wrapped_config), context=context)
        except RootSealBrokenError:
            log.warning("rotation.provider_deleted", provider_id=row.id)
            await session.execute(delete(PROVIDERS).where(is_this))
            continue
        version, wrapped = root.wrap(config, context=context)
        values = {"root_version": version, "wrapped_config": wrapped}
        await session.execute(update(PROVIDERS).where(is_this).values(values))
    return len(rows)
