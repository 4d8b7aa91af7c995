"""How often messages of a chat were hidden or shown again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_14"
down_revision = "2026_11_13"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "chats", sa.Column("hidden_changes", sa.Integer(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    op.drop_column("chats", "hidden_changes")
