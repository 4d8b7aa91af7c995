"""The role of a process: it serves requests, or only runs jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import required

revision = "2026_11_30"
down_revision = "2026_11_28"
branch_labels = None
depends_on = None

PHASE = "expand"


def upgrade() -> None:
    # Processes of the previous version, which set nothing, count as servers.
    op.add_column("processes", required("is_server", sa.Boolean(), server_default=sa.true()))


def downgrade() -> None:
    op.drop_column("processes", "is_server")
