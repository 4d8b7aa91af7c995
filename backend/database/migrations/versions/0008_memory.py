"""When the points of a user were last compared with the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import UtcTime

revision = "2026_11_8"
down_revision = "2026_11_7"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("index_states", sa.Column("compared_at", UtcTime()))


def downgrade() -> None:
    op.drop_column("index_states", "compared_at")
