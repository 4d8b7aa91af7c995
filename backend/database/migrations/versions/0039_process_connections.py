"""The connections of processes, by which lost ones are found earlier."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_39"
down_revision = "2026_11_38"
branch_labels = None
depends_on = None

PHASE = "expand"


def upgrade() -> None:
    op.add_column("processes", sa.Column("backend_pid", sa.Integer()))


def downgrade() -> None:
    op.drop_column("processes", "backend_pid")
