"""How far campaigns are read, what is proposed to their users; a chat's summaries by audience."""

from __future__ import annotations

from typing import Any

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


COUNTS = (("enrichment_runs", "delay_ms"), ("turns", "path_tokens"), ("turns", "sent_tokens"))
"""Columns of numbers that were not noted before."""

_KEPT = (
    "user_id, chat_id, run_id, position, is_edited, sealed_summary, revision, created_at, "
    "updated_at, audience"
)


def upgrade() -> None:
    op.create_table(
        "campaign_marks",
        sa.Column("id", Id(), sa.ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id"),
        reference("chat_id", "chats.id"),
        required("position", sa.Integer()),
        required("version", sa.Integer()),
    )
    _index("campaign_marks", "chat_id", "position")
    _index("campaign_marks", "campaign_id", "version")
    op.create_table(
        "campaign_proposals",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("campaign_id", "campaigns.id"),
        required("item_id", Id()),
        required("kind", sa.String()),
        required("reason", sa.String()),
        required("state", sa.String()),
        required("audience", sa.String()),
        required("sealed_proposal", sa.LargeBinary()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    _index("campaign_proposals", "campaign_id", "state", "id")
    op.create_table(
        "campaign_proposal_sources",
        reference("proposal_id", "campaign_proposals.id", primary_key=True),
        sa.Column("message_id", Id(), primary_key=True),
        reference("chat_id", "chats.id", index=True),
    )
    _index("campaign_proposal_sources", "message_id")
    connection = op.get_bind()
    kind = Id().compile(dialect=connection.dialect)
    # In SQL of our own: Alembic would make the table again on SQLite, without its triggers.
    op.execute(
        f"ALTER TABLE enrichment_runs ADD COLUMN campaign_id {kind} CONSTRAINT"
        " fk_enrichment_runs_campaign_id REFERENCES campaigns (id) ON DELETE SET NULL"
    )
    _index("enrichment_runs", "campaign_id", "created_at")
    for table, column in COUNTS:
        op.add_column(table, sa.Column(column, sa.Integer()))
    for table, columns in COUNTED.items():
        count_table(connection, table, columns)
    _rebuild_summaries(
        [sa.Column("id", Id(), primary_key=True), reference("message_id", "messages.id")],
        "SELECT id, id",
    )
    op.create_index(
        "ix_chat_summaries_message_id_audience",
        "chat_summaries",
        ["message_id", "audience"],
        unique=True,
    )


def downgrade() -> None:
    connection = op.get_bind()
    for table in COUNTED:
        stop_counting(connection, table)
    for table, column in COUNTS:
        op.drop_column(table, column)
    op.drop_index("ix_enrichment_runs_campaign_id_created_at", "enrichment_runs")
    op.drop_column("enrichment_runs", "campaign_id")
    op.drop_table("campaign_proposal_sources")
    op.drop_table("campaign_proposals")
    op.drop_table("campaign_marks")
    # What is sealed in another row than its message's can't be read there. It is written again.
    connection.exec_driver_sql("DELETE FROM chat_summaries WHERE id <> message_id")
    _rebuild_summaries([reference("id", "messages.id", primary_key=True)], "SELECT id")


def _rebuild_summaries(keys: list[sa.Column[Any]], select: str) -> None:
    """Give the table of summaries other columns in place of `id`, and its rows what they select.

    SQLite can't change a key in place.
    """
    connection = op.get_bind()
    stop_counting(connection, "chat_summaries")
    connection.exec_driver_sql("CREATE TABLE summaries_before AS SELECT * FROM chat_summaries")
    op.drop_table("chat_summaries")
    op.create_table(
        "chat_summaries",
        *keys,
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("run_id", Id()),
        required("position", sa.Integer()),
        required("is_edited", sa.Boolean()),
        required("sealed_summary", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
        required("audience", sa.String(), server_default="public"),
    )
    _index("chat_summaries", "chat_id", "position")
    names = ", ".join(column.name for column in keys)
    connection.exec_driver_sql(
        f"INSERT INTO chat_summaries ({names}, {_KEPT}) {select}, {_KEPT} FROM summaries_before"
    )
    op.drop_table("summaries_before")
    count_table(connection, "chat_summaries", ("sealed_summary",))


def _index(table: str, *columns: str) -> None:
    op.create_index("_".join(["ix", table, *columns]), table, columns)
