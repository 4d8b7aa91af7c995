"""Campaigns, chronicles and lorebooks that are being deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import UtcTime

revision = "2026_11_38"
down_revision = "2026_11_36"
branch_labels = None
depends_on = None

PHASE = "expand"

TABLES = ("campaigns", "chronicles", "lorebooks")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("deleted_at", UtcTime()))


def downgrade() -> None:
    for table in TABLES:
        # Rows that refer to them go along, or are detached.
        hidden = sa.table(table, sa.column("deleted_at"))
        op.execute(hidden.delete().where(hidden.c.deleted_at.is_not(None)))
        op.drop_column(table, "deleted_at")
