"""Ratios of counted tokens are each user's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No one can say whose reports made the shared ratios: each user's are learned again, within a
    # few replies.
    op.drop_table("token_ratios")
    op.create_table(
        "token_ratios",
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("ratio", sa.Float(precision=53), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_token_ratios_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "model", name=op.f("pk_token_ratios")),
    )
    op.create_index(op.f("ix_token_ratios_model_ratio"), "token_ratios", ["model", "ratio"])


def downgrade() -> None:
    op.drop_table("token_ratios")
    op.create_table(
        "token_ratios",
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("ratio", sa.Float(precision=53), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_token_ratios")),
    )
