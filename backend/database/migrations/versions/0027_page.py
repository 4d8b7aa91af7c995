"""Pins, archive, titles and backgrounds of chats, favourites, removed messages, uploads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_27"
down_revision = "2026_11_26"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("chats", sa.Column("pinned_at", UtcTime()))
    op.add_column("chats", sa.Column("archived_at", UtcTime()))
    op.add_column("chats", required("title_origin", sa.String(), server_default="user"))
    op.add_column("characters", required("is_favourite", sa.Boolean(), server_default=sa.false()))
    op.add_column("messages", sa.Column("removed_at", UtcTime()))
    op.add_column("stored_files", sa.Column("waits_until", UtcTime()))
    op.create_table(
        "backgrounds",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id", nullable=True, unique=True),
        reference("character_id", "characters.id", nullable=True, unique=True),
        required("media_type", sa.String()),
        required("sealed_image", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    count_table(connection, "backgrounds", ("sealed_image",))


def downgrade() -> None:
    stop_counting(op.get_bind(), "backgrounds")
    op.drop_table("backgrounds")
    op.drop_column("stored_files", "waits_until")
    op.drop_column("messages", "removed_at")
    op.drop_column("characters", "is_favourite")
    op.drop_column("chats", "title_origin")
    op.drop_column("chats", "archived_at")
    op.drop_column("chats", "pinned_at")
