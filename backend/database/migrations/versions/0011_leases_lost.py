"""Jobs count the leases that their workers lost in a row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("leases_lost", sa.Integer(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column("jobs", "leases_lost")
