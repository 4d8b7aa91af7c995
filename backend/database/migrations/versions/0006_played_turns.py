"""Turns that are played: what happened in them, and those that wait for their player."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting

revision = "2026_11_6"
down_revision = "2026_11_5"
branch_labels = None
depends_on = None

OF_TURNS = ("sealed_events", "sealed_play")
_TEXTS = ("sealed_output", "sealed_problem")


def upgrade() -> None:
    connection = op.get_bind()
    for name in OF_TURNS:
        op.add_column("turns", sa.Column(name, sa.LargeBinary()))
    op.drop_index("uq_turns_running", "turns")
    _one_each("uq_turns_open", "state IN ('running', 'waiting')")
    stop_counting(connection, "turns")
    count_table(connection, "turns", (*_TEXTS, *OF_TURNS))


def downgrade() -> None:
    connection = op.get_bind()
    stop_counting(connection, "turns")
    waiting = "SELECT reply_id FROM turns WHERE state = 'waiting'"
    op.execute(f"UPDATE messages SET status = 'interrupted' WHERE id IN ({waiting})")  # noqa: S608
    op.execute("UPDATE turns SET state = 'interrupted' WHERE state = 'waiting'")
    op.drop_index("uq_turns_open", "turns")
    _one_each("uq_turns_running", "state = 'running'")
    for name in OF_TURNS:
        op.drop_column("turns", name)
    count_table(connection, "turns", _TEXTS)


def _one_each(name: str, condition: str) -> None:
    """An index that lets a chat have one turn in these states."""
    where = sa.text(condition)
    op.create_index(
        name, "turns", ["chat_id"], unique=True, sqlite_where=where, postgresql_where=where
    )
