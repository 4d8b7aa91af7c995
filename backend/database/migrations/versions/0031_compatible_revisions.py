"""The versions of Talekeeper that can use the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_31"
down_revision = "2026_11_30"
branch_labels = None
depends_on = None

PHASE = "expand"


def upgrade() -> None:
    op.create_table("compatible_revisions", sa.Column("revision", sa.String(), primary_key=True))


def downgrade() -> None:
    op.drop_table("compatible_revisions")
