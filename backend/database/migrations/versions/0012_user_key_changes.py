"""User keys that can be changed: generations of slots, and a derivation key that stays."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "users", sa.Column("newest_data_key", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column("users", sa.Column("wrapped_derivation_key", sa.LargeBinary(), nullable=True))
    op.add_column("key_slots", sa.Column("generation", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("key_slots", "generation")
    op.drop_column("users", "wrapped_derivation_key")
    op.drop_column("users", "newest_data_key")
