"""The user's lines as they were typed, before their macros were expanded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting

revision = "2026_11_19"
down_revision = "2026_11_18"
branch_labels = None
depends_on = None

_COUNTED = ("sealed_author", "sealed_content", "sealed_thinking", "sealed_injected_context")


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("messages", sa.Column("sealed_typed", sa.LargeBinary()))
    stop_counting(connection, "messages")
    count_table(connection, "messages", (*_COUNTED, "sealed_typed"))


def downgrade() -> None:
    connection = op.get_bind()
    stop_counting(connection, "messages")
    op.drop_column("messages", "sealed_typed")
    count_table(connection, "messages", _COUNTED)
