"""Questions that messages answer, for the index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_9"
down_revision = "2026_11_8"
branch_labels = None
depends_on = None

COUNTED = {"message_questions": ("sealed_questions",)}
"""Columns whose bytes count towards what a user may store."""


def upgrade() -> None:
    op.create_table(
        "message_questions",
        sa.Column("id", Id(), sa.ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("run_id", Id()),
        sa.Column("sealed_questions", sa.LargeBinary()),
        required("written_at", UtcTime()),
    )
    op.create_index(
        "ix_message_questions_chat_id_run_id", "message_questions", ["chat_id", "run_id"]
    )
    for table, columns in COUNTED.items():
        count_table(op.get_bind(), table, columns)


def downgrade() -> None:
    for table in COUNTED:
        stop_counting(op.get_bind(), table)
    op.drop_table("message_questions")
