"""Digests of messages' texts, and the state of the OpenAI-compatible endpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required, where
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_25"
down_revision = "2026_11_24"
branch_labels = None
depends_on = None

_COUNTED = {
    "client_chats": ("sealed_state",),
    "client_requests": ("sealed_details",),
    "client_rules": ("sealed_text",),
}


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("messages", sa.Column("text_digest", sa.LargeBinary()))
    op.create_index(
        "ix_messages_text_digest",
        "messages",
        ["user_id", "text_digest"],
        **where("text_digest IS NOT NULL"),
    )
    op.create_index(
        "ix_messages_undigested", "messages", ["chat_id"], **where("text_digest IS NULL")
    )
    op.create_table(
        "client_chats",
        sa.Column("id", Id(), sa.ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("sealed_state", sa.LargeBinary()),
        required("updated_at", UtcTime()),
    )
    op.create_table(
        "client_requests",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("kind", sa.String()),
        required("reason", sa.String()),
        reference("chat_id", "chats.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("turn_id", Id()),
        sa.Column("instruction_digest", sa.LargeBinary()),
        required("sealed_details", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index("ix_client_requests_user_id_id", "client_requests", ["user_id", "id"])
    op.create_table(
        "client_rules",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("instruction_digest", sa.LargeBinary()),
        required("kind", sa.String()),
        required("sealed_text", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index(
        "ix_client_rules_user_id_instruction_digest",
        "client_rules",
        ["user_id", "instruction_digest"],
        unique=True,
    )
    for table, columns in _COUNTED.items():
        count_table(connection, table, columns)


def downgrade() -> None:
    connection = op.get_bind()
    for table in _COUNTED:
        stop_counting(connection, table)
        op.drop_table(table)
    op.drop_index("ix_messages_undigested", "messages")
    op.drop_index("ix_messages_text_digest", "messages")
    op.drop_column("messages", "text_digest")
