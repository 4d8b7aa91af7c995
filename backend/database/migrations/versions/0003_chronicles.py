"""Chronicles, the agent that keeps them, and rolling summaries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "chronicles",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("sealed_chronicle", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_chronicles_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chronicles")),
    )
    op.create_index(op.f("ix_chronicles_user_id_id"), "chronicles", ["user_id", "id"], unique=False)
    op.create_table(
        "chronicle_events",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chronicle_id", Id(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("significance", sa.Integer(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("is_edited", sa.Boolean(), nullable=False),
        sa.Column("happened_at", UtcTime(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("superseded_by", Id(), nullable=True),
        sa.Column("run_id", Id(), nullable=True),
        sa.Column("sealed_event", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chronicle_id"],
            ["chronicles.id"],
            name=op.f("fk_chronicle_events_chronicle_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["superseded_by"],
            ["chronicle_events.id"],
            name=op.f("fk_chronicle_events_superseded_by"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_chronicle_events_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chronicle_events")),
    )
    op.create_index(
        op.f("ix_chronicle_events_chronicle_id_happened_at_place_id"),
        "chronicle_events",
        ["chronicle_id", "happened_at", "place", "id"],
        unique=False,
    )
    op.create_index(
        "ix_chronicle_events_pinned",
        "chronicle_events",
        ["chronicle_id", "happened_at", "place", "id"],
        unique=False,
        sqlite_where=sa.text("is_pinned = 1"),
        postgresql_where=sa.text("is_pinned"),
    )
    op.create_index(
        op.f("ix_chronicle_events_run_id"), "chronicle_events", ["run_id"], unique=False
    )
    op.create_index(
        op.f("ix_chronicle_events_superseded_by"),
        "chronicle_events",
        ["superseded_by"],
        unique=False,
    )
    op.create_index(
        op.f("ix_chronicle_events_user_id"), "chronicle_events", ["user_id"], unique=False
    )
    op.create_table(
        "chronicle_event_sources",
        sa.Column("event_id", Id(), nullable=False),
        sa.Column("message_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"],
            ["chats.id"],
            name=op.f("fk_chronicle_event_sources_chat_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["chronicle_events.id"],
            name=op.f("fk_chronicle_event_sources_event_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("event_id", "message_id", name=op.f("pk_chronicle_event_sources")),
    )
    op.create_index(
        op.f("ix_chronicle_event_sources_chat_id"),
        "chronicle_event_sources",
        ["chat_id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_chronicle_event_sources_message_id"),
        "chronicle_event_sources",
        ["message_id"],
        unique=False,
    )
    op.create_table(
        "enrichment_runs",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("chronicle_id", Id(), nullable=True),
        sa.Column("job_id", Id(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("from_position", sa.Integer(), nullable=False),
        sa.Column("to_position", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("sealed_detail", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("undone_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_enrichment_runs_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["chronicle_id"],
            ["chronicles.id"],
            name=op.f("fk_enrichment_runs_chronicle_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_enrichment_runs_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrichment_runs")),
    )
    op.create_index(
        op.f("ix_enrichment_runs_chat_id_id"), "enrichment_runs", ["chat_id", "id"], unique=False
    )
    op.create_index(
        op.f("ix_enrichment_runs_chronicle_id"), "enrichment_runs", ["chronicle_id"], unique=False
    )
    op.create_index(
        op.f("ix_enrichment_runs_user_id_created_at"),
        "enrichment_runs",
        ["user_id", "created_at"],
        unique=False,
    )
    op.create_table(
        "chat_summaries",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("run_id", Id(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("is_edited", sa.Boolean(), nullable=False),
        sa.Column("sealed_summary", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_chat_summaries_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["id"], ["messages.id"], name=op.f("fk_chat_summaries_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_chat_summaries_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_summaries")),
    )
    op.create_index(
        op.f("ix_chat_summaries_chat_id_position"),
        "chat_summaries",
        ["chat_id", "position"],
        unique=False,
    )
    op.create_index(op.f("ix_chat_summaries_user_id"), "chat_summaries", ["user_id"], unique=False)
    op.create_table(
        "enrichment_marks",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_enrichment_marks_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["id"], ["messages.id"], name=op.f("fk_enrichment_marks_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_enrichment_marks_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrichment_marks")),
    )
    op.create_index(
        op.f("ix_enrichment_marks_chat_id_position"),
        "enrichment_marks",
        ["chat_id", "position"],
        unique=False,
    )
    op.create_index(
        op.f("ix_enrichment_marks_user_id"), "enrichment_marks", ["user_id"], unique=False
    )

    _refer("chats", "chronicle_id", "chronicles", "SET NULL")
    op.add_column(
        "chats",
        sa.Column("chronicle_enabled", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.add_column("chats", sa.Column("chronicle_since", UtcTime(), nullable=True))
    op.create_index(op.f("ix_chats_chronicle_id"), "chats", ["chronicle_id"], unique=False)
    _refer("lorebooks", "chronicle_id", "chronicles", "CASCADE")
    op.create_index(op.f("ix_lorebooks_chronicle_id"), "lorebooks", ["chronicle_id"], unique=True)
    op.add_column("lore_entries", sa.Column("agent_run_id", Id(), nullable=True))
    op.add_column("lore_entries", sa.Column("agent_revision", sa.Integer(), nullable=True))
    _refer("lore_entries", "source_chat_id", "chats", "SET NULL")
    op.add_column("lore_entries", sa.Column("source_message_id", Id(), nullable=True))
    op.create_index(op.f("ix_lore_entries_agent_run_id"), "lore_entries", ["agent_run_id"])
    op.create_index(op.f("ix_lore_entries_source_chat_id"), "lore_entries", ["source_chat_id"])


def downgrade() -> None:
    for name in ("source_chat_id", "agent_run_id"):
        op.drop_index(op.f(f"ix_lore_entries_{name}"), table_name="lore_entries")
    for name in ("source_message_id", "source_chat_id", "agent_revision", "agent_run_id"):
        op.drop_column("lore_entries", name)
    # What the agent wrote into a book of a chronicle stays, in a book like any other.
    op.drop_index(op.f("ix_lorebooks_chronicle_id"), table_name="lorebooks")
    op.drop_column("lorebooks", "chronicle_id")
    op.drop_index(op.f("ix_chats_chronicle_id"), table_name="chats")
    for name in ("chronicle_since", "chronicle_enabled", "chronicle_id"):
        op.drop_column("chats", name)
    for name in TABLES:
        op.drop_table(name)


def _refer(table: str, column: str, target: str, on_delete: str) -> None:
    """Add a column with its foreign key: SQLite takes the key in the column's own words alone."""
    key = sa.ForeignKey(f"{target}.id", name=op.f(f"fk_{table}_{column}"), ondelete=on_delete)
    op.add_column(table, sa.Column(column, Id(), key, nullable=True), inline_references=True)


TABLES = (
    "enrichment_marks",
    "chat_summaries",
    "enrichment_runs",
    "chronicle_event_sources",
    "chronicle_events",
    "chronicles",
)
