"""Campaigns: their items, and the ledger of changes that these are made of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_4"
down_revision = "2026_11_3"
branch_labels = None
depends_on = None

COUNTED = {
    "campaigns": ("sealed_campaign",),
    "campaign_items": ("sealed_state",),
    "campaign_changes": ("sealed_operations",),
}
"""Columns whose bytes count towards what a user may store."""


def upgrade() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("rules", sa.String()),
        reference("chronicle_id", "chronicles.id", ondelete="SET NULL", nullable=True, index=True),
        required("sealed_campaign", sa.LargeBinary()),
        required("version", sa.Integer()),
        required("last_seq", sa.Integer()),
        required("edits", sa.Integer()),
        required("compactions", sa.Integer()),
        required("is_stale", sa.Boolean()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_campaigns_user_id_id", "campaigns", ["user_id", "id"])
    op.create_table(
        "campaign_items",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id"),
        required("kind", sa.String()),
        required("version", sa.Integer()),
        required("subkind", sa.String()),
        sa.Column("place_id", Id()),
        sa.Column("about_id", Id()),
        required("audience", sa.String()),
        required("exists", sa.Boolean()),
        required("is_live", sa.Boolean()),
        required("is_stale", sa.Boolean()),
        required("seq", sa.Integer()),
        required("sealed_state", sa.LargeBinary()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    for columns in ("kind", "id"), ("place_id",), ("about_id",), ("version",):
        name = "_".join(["ix_campaign_items_campaign_id", *columns])
        op.create_index(name, "campaign_items", ["campaign_id", *columns])
    op.create_table(
        "campaign_changes",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id"),
        reference("item_id", "campaign_items.id"),
        required("seq", sa.Integer()),
        required("version", sa.Integer()),
        required("actor", sa.String()),
        sa.Column("turn_id", Id()),
        required("is_on_path", sa.Boolean()),
        required("is_undone", sa.Boolean()),
        required("sealed_operations", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index(
        "ix_campaign_changes_campaign_id_seq",
        "campaign_changes",
        ["campaign_id", "seq"],
        unique=True,
    )
    op.create_index("ix_campaign_changes_item_id_seq", "campaign_changes", ["item_id", "seq"])
    op.create_table(
        "campaign_change_sources",
        reference("change_id", "campaign_changes.id", primary_key=True),
        sa.Column("message_id", Id(), primary_key=True),
        reference("chat_id", "chats.id"),
        required("position", sa.Integer()),
    )
    op.create_index(
        "ix_campaign_change_sources_message_id", "campaign_change_sources", ["message_id"]
    )
    op.create_index(
        "ix_campaign_change_sources_chat_id_position",
        "campaign_change_sources",
        ["chat_id", "position"],
    )
    connection = op.get_bind()
    kind = Id().compile(dialect=connection.dialect)
    # In SQL of our own: Alembic would make the table again on SQLite, without its triggers.
    op.execute(
        f"ALTER TABLE chats ADD COLUMN campaign_id {kind}"
        " CONSTRAINT fk_chats_campaign_id REFERENCES campaigns (id) ON DELETE SET NULL"
    )
    op.create_index("ix_chats_campaign_id", "chats", ["campaign_id"])
    for table, columns in COUNTED.items():
        count_table(connection, table, columns)


def downgrade() -> None:
    connection = op.get_bind()
    for table in COUNTED:
        stop_counting(connection, table)
    op.drop_index("ix_chats_campaign_id", "chats")
    op.drop_column("chats", "campaign_id")
    for table in (
        "campaign_change_sources",
        "campaign_changes",
        "campaign_items",
        "campaigns",
    ):
        op.drop_table(table)
