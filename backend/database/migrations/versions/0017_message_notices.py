"""Notices about how a reply came about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_17"
down_revision = "2026_11_16"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("notices", sa.String()))


def downgrade() -> None:
    op.drop_column("messages", "notices")
