"""Claims to servers that answer few requests at the same time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.types import Id, UtcTime

revision = "2026_11_18"
down_revision = "2026_11_17"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "slot_claims",
        sa.Column("id", Id(), primary_key=True),
        required("server_id", Id()),
        reference("user_id", "users.id", index=True),
        required("chat_id", Id()),
        required("use", sa.String()),
        required("rank", sa.Integer()),
        required("is_granted", sa.Boolean()),
        required("lease_until", UtcTime()),
    )
    op.create_index("ix_slot_claims_server_id", "slot_claims", ["server_id"])
    op.add_column("turns", sa.Column("waits_for", sa.String()))


def downgrade() -> None:
    op.drop_column("turns", "waits_for")
    op.drop_table("slot_claims")
