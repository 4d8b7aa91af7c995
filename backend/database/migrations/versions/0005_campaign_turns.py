"""What a campaign put into a prompt, who may know what, and how often terms are used."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting

revision = "2026_11_5"
down_revision = "2026_11_4"
branch_labels = None
depends_on = None

WITH_AUDIENCE = ("messages", "chronicle_events", "chat_summaries")

OLD_INDEXES = ("place_id",), ("about_id",)
NEW_INDEXES = ("kind", "subkind"), ("place_id", "kind"), ("about_id", "kind")
"""Of a campaign's items: what a prompt is read by."""

_TEXTS = ("sealed_author", "sealed_content", "sealed_thinking")


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("messages", sa.Column("sealed_injected_context", sa.LargeBinary()))
    for table in WITH_AUDIENCE:
        column = sa.Column("audience", sa.String(), nullable=False, server_default="public")
        op.add_column(table, column)
    uses = sa.Column("uses", sa.Integer(), nullable=False, server_default="0")
    op.add_column("campaign_items", uses)
    _replace_indexes(OLD_INDEXES, NEW_INDEXES)
    stop_counting(connection, "messages")
    count_table(connection, "messages", (*_TEXTS, "sealed_injected_context"))


def downgrade() -> None:
    connection = op.get_bind()
    stop_counting(connection, "messages")
    for table in WITH_AUDIENCE:
        op.drop_column(table, "audience")
    op.drop_column("messages", "sealed_injected_context")
    op.drop_column("campaign_items", "uses")
    _replace_indexes(NEW_INDEXES, OLD_INDEXES)
    count_table(connection, "messages", _TEXTS)


def _replace_indexes(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> None:
    for columns in old:
        op.drop_index(_name(columns), "campaign_items")
    for columns in new:
        op.create_index(_name(columns), "campaign_items", ["campaign_id", *columns])


def _name(columns: Sequence[str]) -> str:
    return "_".join(["ix_campaign_items_campaign_id", *columns])
