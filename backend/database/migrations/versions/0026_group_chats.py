"""Presence and memories of characters, tellings of events, and replies that follow each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import required, where
from backend.database.types import Id

revision = "2026_11_26"
down_revision = "2026_11_25"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("messages", sa.Column("presence", sa.String()))
    op.create_index(
        "ix_messages_presence", "messages", ["chat_id", "position"], **where("presence IS NOT NULL")
    )
    op.add_column(
        "chat_characters", required("is_from_start", sa.Boolean(), server_default=sa.true())
    )
    op.add_column("characters", required("keeps_memories", sa.Boolean(), server_default=sa.false()))
    op.add_column("chronicle_event_sources", required("telling", sa.Integer(), server_default="0"))
    op.add_column("chat_summaries", required("begins_at", sa.Integer(), server_default="0"))
    op.add_column("turns", sa.Column("chain_id", Id()))
    op.add_column("turns", required("replies_left", sa.Integer(), server_default="0"))
    op.create_index("ix_turns_chain_id", "turns", ["chain_id"], **where("chain_id IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_turns_chain_id", "turns")
    op.drop_column("turns", "replies_left")
    op.drop_column("turns", "chain_id")
    op.drop_column("chat_summaries", "begins_at")
    op.drop_column("chronicle_event_sources", "telling")
    op.drop_column("characters", "keeps_memories")
    op.drop_column("chat_characters", "is_from_start")
    op.drop_index("ix_messages_presence", "messages")
    op.drop_column("messages", "presence")
