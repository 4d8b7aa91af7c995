"""What a campaign put into a prompt, who may know what, and how often terms are used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting

revision = "2026_11_5"
down_revision = "2026_11_4"
branch_labels = None
depends_on = None

WITH_AUDIENCE = ("messages", "chronicle_events", "chat_summaries")

_TEXTS = ("sealed_author", "sealed_content", "sealed_thinking")


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("messages", sa.Column("sealed_injected_context", sa.LargeBinary()))
    for table in WITH_AUDIENCE:
        column = sa.Column("audience", sa.String(), nullable=False, server_default="public")
        op.add_column(table, column)
    uses = sa.Column("uses", sa.Integer(), nullable=False, server_default="0")
    op.add_column("campaign_items", uses)
    stop_counting(connection, "messages")
    count_table(connection, "messages", (*_TEXTS, "sealed_injected_context"))


def downgrade() -> None:
    connection = op.get_bind()
    stop_counting(connection, "messages")
    for table in WITH_AUDIENCE:
        op.drop_column(table, "audience")
    op.drop_column("messages", "sealed_injected_context")
    op.drop_column("campaign_items", "uses")
    count_table(connection, "messages", _TEXTS)
