"""Recent activity of accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account_activity",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("sealed_entry", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_address", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_account_activity_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account_activity")),
    )
    op.create_index(op.f("ix_account_activity_user_id_id"), "account_activity", ["user_id", "id"])
    op.create_index(op.f("ix_account_activity_created_at"), "account_activity", ["created_at"])
    op.create_index(
        op.f("ix_account_activity_addressed"),
        "account_activity",
        ["created_at"],
        sqlite_where=sa.text("sealed_address IS NOT NULL"),
        postgresql_where=sa.text("sealed_address IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("account_activity")
