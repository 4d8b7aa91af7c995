"""Heartbeats of processes, and the process that holds a turn or a claim to a server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import required
from backend.database.types import Id, UtcTime

revision = "2026_11_22"
down_revision = "2026_11_21"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("id", Id(), primary_key=True),
        required("seen_at", UtcTime()),
    )
    op.add_column("turns", sa.Column("lease_owner", Id()))
    op.add_column("slot_claims", sa.Column("lease_owner", Id()))


def downgrade() -> None:
    op.drop_column("slot_claims", "lease_owner")
    op.drop_column("turns", "lease_owner")
    op.drop_table("processes")
