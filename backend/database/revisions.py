"""The phases of migrations, and the versions of Talekeeper that can use the tables.

During an update, processes of the previous version run on tables that were already migrated. So
each migration has a phase, in its constant `PHASE`:

- `expand` adds tables, columns and indexes. The code of earlier revisions can use the tables.
- `contract` removes or renames something. Its constant `REPLACED_IN` is the first revision with
  code that does not use it, at least one release earlier. Older code cannot use the tables.

Migrations without a phase count as `contract`, replaced by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection, delete, insert, inspect, select
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, get_table

if TYPE_CHECKING:
    from alembic.script import Script

Phase = Literal["expand", "contract"]


class CompatibleRevision(Base):
    """A revision with code that can use the tables as they are."""

    __tablename__ = "compatible_revisions"

    revision: Mapped[str] = mapped_column(primary_key=True)


_TABLE = get_table(CompatibleRevision)


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration. Code before `replaced_in` cannot use the tables after it."""

    revision: str
    title: str
    phase: Phase
    replaced_in: str | None

    @classmethod
    def from_script(cls, script: Script) -> Migration:
        phase: Phase = getattr(script.module, "PHASE", "contract")
        replaced_in = getattr(script.module, "REPLACED_IN", script.revision)
        return cls(script.revision, script.doc, phase, None if phase == "expand" else replaced_in)


def find_compatible(migrations: Sequence[Migration]) -> list[str]:
    """Return the revisions with code that can use the tables after these migrations."""
    positions = {each.revision: index for index, each in enumerate(migrations)}
    oldest = max(
        (positions[each.replaced_in] for each in migrations if each.replaced_in), default=0
    )
    return [each.revision for each in migrations[oldest:]]


def store_compatible(connection: Connection, migrations: Sequence[Migration]) -> None:
    """Store which code can use the tables, if they have a place for it."""
    if inspect(connection).has_table(_TABLE.name):
        rows = [{"revision": each} for each in find_compatible(migrations)]
        connection.execute(delete(_TABLE))
        connection.execute(insert(_TABLE), rows)


def is_compatible(connection: Connection, revision: str) -> bool:
    """True if the tables were made by a newer version, and code of `revision` can use them."""
    if not inspect(connection).has_table(_TABLE.name):
        return False
    return connection.scalar(select(_TABLE).where(_TABLE.c.revision == revision)) is not None
