"""The prompt preset of a character; what is learned of the servers of providers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id

revision = "2026_11_10"
down_revision = "2026_11_9"
branch_labels = None
depends_on = None

PROVIDERS = ("providers", "installation_providers")


def upgrade() -> None:
    op.add_column("characters", sa.Column("preset_id", Id()))
    for table in PROVIDERS:
        op.add_column(table, sa.Column("abilities", sa.String()))


def downgrade() -> None:
    for table in PROVIDERS:
        op.drop_column(table, "abilities")
    op.drop_column("characters", "preset_id")
