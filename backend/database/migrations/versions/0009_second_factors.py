"""Second factors, and the digest of those that are on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("users", sa.Column("factors_digest", sa.LargeBinary(), nullable=True))
    op.create_table(
        "second_factors",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("is_on", sa.Boolean(), nullable=False),
        sa.Column("sealed_secret", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_label", sa.LargeBinary(), nullable=True),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("sign_count", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("last_used_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_second_factors_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_second_factors")),
    )
    op.create_index(op.f("ix_second_factors_user_id"), "second_factors", ["user_id"])


def downgrade() -> None:
    op.drop_table("second_factors")
    op.drop_column("users", "factors_digest")
