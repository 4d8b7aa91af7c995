"""How far campaigns are read, and what is proposed to their users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_7"
down_revision = "2026_11_6"
branch_labels = None
depends_on = None

COUNTED = {"campaign_proposals": ("sealed_proposal",)}
"""Columns whose bytes count towards what a user may store."""


def upgrade() -> None:
    op.create_table(
        "campaign_marks",
        sa.Column("id", Id(), sa.ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id", index=True),
        reference("chat_id", "chats.id"),
        required("position", sa.Integer()),
    )
    _index("campaign_marks", "chat_id", "position")
    op.create_table(
        "campaign_proposals",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id"),
        reference("chat_id", "chats.id", index=True),
        required("message_id", Id()),
        sa.Column("item_id", Id()),
        required("kind", sa.String()),
        required("reason", sa.String()),
        required("state", sa.String()),
        required("audience", sa.String()),
        required("sealed_proposal", sa.LargeBinary()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    _index("campaign_proposals", "campaign_id", "state", "id")
    _index("campaign_proposals", "message_id")
    connection = op.get_bind()
    for table, columns in COUNTED.items():
        count_table(connection, table, columns)


def downgrade() -> None:
    connection = op.get_bind()
    for table in COUNTED:
        stop_counting(connection, table)
    op.drop_table("campaign_proposals")
    op.drop_table("campaign_marks")


def _index(table: str, *columns: str) -> None:
    op.create_index("_".join(["ix", table, *columns]), table, columns)
