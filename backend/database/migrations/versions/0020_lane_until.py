"""Jobs that hold their lane up for a limited time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import UtcTime

revision = "2026_11_20"
down_revision = "2026_11_19"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("lane_until", UtcTime()))


def downgrade() -> None:
    op.drop_column("jobs", "lane_until")
