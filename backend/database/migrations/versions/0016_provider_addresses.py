"""Hosts and ports that administrators allow providers to be at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import required
from backend.database.types import Id, UtcTime

revision = "2026_11_16"
down_revision = "2026_11_14"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "provider_addresses",
        sa.Column("id", Id(), primary_key=True),
        required("host", sa.String()),
        required("port", sa.Integer()),
        required("created_at", UtcTime()),
        sa.UniqueConstraint("host", "port", name="uq_provider_addresses_host_port"),
    )


def downgrade() -> None:
    op.drop_table("provider_addresses")
