"""Failed sign-ins decay; addresses from which an account was signed in to before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("login_failures") as batch:
        batch.alter_column(
            "failures",
            existing_type=sa.Integer(),
            type_=sa.Float(precision=53),
            existing_nullable=False,
        )
    op.create_table(
        "known_addresses",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("last_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_known_addresses_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_known_addresses")),
    )
    op.create_index(op.f("ix_known_addresses_user_id"), "known_addresses", ["user_id"])
    op.create_index(op.f("ix_known_addresses_last_at"), "known_addresses", ["last_at"])


def downgrade() -> None:
    op.drop_table("known_addresses")
    with op.batch_alter_table("login_failures") as batch:
        batch.alter_column(
            "failures",
            existing_type=sa.Float(precision=53),
            type_=sa.Integer(),
            existing_nullable=False,
        )
