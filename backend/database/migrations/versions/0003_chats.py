"""Chats, their messages and turns, and what hangs on them; what counts towards quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required, where
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_3"
down_revision = "2026_11_2"
branch_labels = None
depends_on = None

COUNTED = {
    "characters": ("sealed_summary", "sealed_card", "sealed_source"),
    "chronicles": ("sealed_chronicle",),
    "embeddings": ("sealed_vector",),
    "idempotent_requests": ("sealed_response",),
    "personas": ("sealed_persona",),
    "card_files": ("sealed_data",),
    "avatars": ("sealed_image", "sealed_thumbnail"),
    "character_assets": ("sealed_description", "sealed_data"),
    "chats": ("sealed_title", "sealed_settings", "sealed_variables"),
    "chronicle_events": ("sealed_event",),
    "lorebooks": ("sealed_book", "sealed_source"),
    "context_texts": ("sealed_text",),
    "enrichment_runs": ("sealed_detail",),
    "lore_entries": ("sealed_entry", "sealed_source"),
    "messages": ("sealed_author", "sealed_content", "sealed_thinking"),
    "turns": ("sealed_output", "sealed_problem"),
    "chat_summaries": ("sealed_summary",),
    "context_records": ("sealed_record",),
    "lore_states": ("sealed_state",),
}
"""Columns whose bytes count towards what a user may store."""


def upgrade() -> None:
    op.create_table(
        "chats",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_title", sa.LargeBinary()),
        sa.Column("sealed_settings", sa.LargeBinary()),
        sa.Column("sealed_variables", sa.LargeBinary()),
        reference("persona_id", "personas.id", ondelete="SET NULL", nullable=True, index=True),
        reference("chronicle_id", "chronicles.id", ondelete="SET NULL", nullable=True, index=True),
        required("chronicle_enabled", sa.Boolean()),
        sa.Column("chronicle_since", UtcTime()),
        sa.Column("leaf_id", Id()),
        required("count_unit", sa.String()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_chats_user_id_id", "chats", ["user_id", "id"])
    op.create_table(
        "chronicle_events",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chronicle_id", "chronicles.id"),
        required("source", sa.String()),
        required("significance", sa.Integer()),
        required("is_pinned", sa.Boolean()),
        required("is_edited", sa.Boolean()),
        required("happened_at", UtcTime()),
        required("place", sa.Integer()),
        reference(
            "superseded_by", "chronicle_events.id", ondelete="SET NULL", nullable=True, index=True
        ),
        sa.Column("run_id", Id(), index=True),
        required("sealed_event", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index(
        "ix_chronicle_events_chronicle_id_happened_at_place_id",
        "chronicle_events",
        ["chronicle_id", "happened_at", "place", "id"],
    )
    op.create_index(
        "ix_chronicle_events_pinned",
        "chronicle_events",
        ["chronicle_id", "happened_at", "place", "id"],
        **where("is_pinned = 1", postgresql="is_pinned"),
    )
    op.create_table(
        "chat_characters",
        reference("chat_id", "chats.id", primary_key=True),
        reference("character_id", "characters.id", primary_key=True, index=True),
        required("place", sa.Integer()),
    )
    op.create_table(
        "chat_lorebooks",
        reference("chat_id", "chats.id", primary_key=True),
        reference("lorebook_id", "lorebooks.id", primary_key=True, index=True),
        required("state", sa.String()),
    )
    op.create_table(
        "chronicle_event_sources",
        reference("event_id", "chronicle_events.id", primary_key=True),
        sa.Column("message_id", Id(), primary_key=True, index=True),
        reference("chat_id", "chats.id", index=True),
        required("position", sa.Integer()),
    )
    op.create_table(
        "context_texts",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        required("digest", sa.LargeBinary(length=32)),
        required("sealed_text", sa.LargeBinary()),
        required("created_at", UtcTime()),
        sa.UniqueConstraint("chat_id", "digest"),
    )
    op.create_table(
        "enrichment_runs",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        reference("chat_id", "chats.id"),
        reference("chronicle_id", "chronicles.id", nullable=True, index=True),
        sa.Column("job_id", Id()),
        required("kind", sa.String()),
        required("state", sa.String()),
        required("model", sa.String()),
        required("from_position", sa.Integer()),
        required("to_position", sa.Integer()),
        required("calls", sa.Integer()),
        required("prompt_tokens", sa.Integer()),
        required("completion_tokens", sa.Integer()),
        required("duration_ms", sa.Integer()),
        sa.Column("error", sa.String()),
        sa.Column("sealed_detail", sa.LargeBinary()),
        required("created_at", UtcTime()),
        sa.Column("undone_at", UtcTime()),
    )
    op.create_index("ix_enrichment_runs_chat_id_id", "enrichment_runs", ["chat_id", "id"])
    op.create_index(
        "ix_enrichment_runs_user_id_created_at", "enrichment_runs", ["user_id", "created_at"]
    )
    op.create_table(
        "lore_entries",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("lorebook_id", "lorebooks.id"),
        required("place", sa.Integer()),
        sa.Column("agent_run_id", Id(), index=True),
        sa.Column("agent_revision", sa.Integer()),
        reference("source_chat_id", "chats.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("source_message_id", Id()),
        required("sealed_entry", sa.LargeBinary()),
        sa.Column("sealed_source", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_lore_entries_lorebook_id_place", "lore_entries", ["lorebook_id", "place"])
    op.create_table(
        "messages",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("parent_id", Id(), sa.ForeignKey("messages.id"), index=True),
        required("position", sa.Integer()),
        required("role", sa.String()),
        sa.Column("character_id", Id()),
        sa.Column("persona_id", Id()),
        required("status", sa.String()),
        required("hidden", sa.Boolean()),
        required("is_active", sa.Boolean()),
        required("is_selected", sa.Boolean()),
        required("tokens", sa.Integer()),
        required("path_tokens", sa.Integer()),
        required("token_counts", sa.String()),
        sa.Column("scene_id", Id(), index=True),
        required("scene_place", sa.Integer()),
        required("sealed_author", sa.LargeBinary()),
        required("sealed_content", sa.LargeBinary()),
        sa.Column("sealed_thinking", sa.LargeBinary()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index(
        "ix_messages_active_path",
        "messages",
        ["chat_id", "path_tokens"],
        **where("is_active = 1", postgresql="is_active"),
    )
    op.create_index(
        "ix_messages_active_position",
        "messages",
        ["chat_id", "position"],
        **where("is_active = 1", postgresql="is_active"),
    )
    op.create_index("ix_messages_chat_id_position", "messages", ["chat_id", "position"])
    op.create_table(
        "turns",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id", index=True),
        required("kind", sa.String()),
        required("state", sa.String()),
        required("model", sa.String()),
        required("request_digest", sa.LargeBinary()),
        sa.Column("user_message_id", Id()),
        sa.Column("reply_id", Id()),
        required("prefix_length", sa.Integer()),
        required("thinking_prefix_length", sa.Integer()),
        required("segments", sa.String()),
        required("totals", sa.String()),
        sa.Column("usage", sa.String()),
        sa.Column("finish", sa.String()),
        sa.Column("sealed_output", sa.LargeBinary()),
        sa.Column("sealed_problem", sa.LargeBinary()),
        required("stop_requested", sa.Boolean()),
        sa.Column("lease_until", UtcTime()),
        required("created_at", UtcTime()),
        sa.Column("finished_at", UtcTime()),
    )
    op.create_index("ix_turns_lease", "turns", ["lease_until"], **where("state = 'running'"))
    op.create_index(
        "uq_turns_running", "turns", ["chat_id"], unique=True, **where("state = 'running'")
    )
    op.create_table(
        "chat_summaries",
        reference("id", "messages.id", primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("run_id", Id()),
        required("position", sa.Integer()),
        required("is_edited", sa.Boolean()),
        required("sealed_summary", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_chat_summaries_chat_id_position", "chat_summaries", ["chat_id", "position"])
    op.create_table(
        "context_records",
        reference("id", "messages.id", primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id", index=True),
        required("sealed_record", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_table(
        "enrichment_marks",
        reference("id", "messages.id", primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        required("position", sa.Integer()),
    )
    op.create_index(
        "ix_enrichment_marks_chat_id_position", "enrichment_marks", ["chat_id", "position"]
    )
    op.create_table(
        "lore_states",
        reference("id", "messages.id", primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        required("position", sa.Integer()),
        required("sealed_state", sa.LargeBinary()),
    )
    op.create_index("ix_lore_states_chat_id_position", "lore_states", ["chat_id", "position"])
    for table, columns in COUNTED.items():
        count_table(op.get_bind(), table, columns)


def downgrade() -> None:
    for table in COUNTED:
        stop_counting(op.get_bind(), table)
    for table in (
        "lore_states",
        "enrichment_marks",
        "context_records",
        "chat_summaries",
        "turns",
        "messages",
        "lore_entries",
        "enrichment_runs",
        "context_texts",
        "chronicle_event_sources",
        "chat_lorebooks",
        "chat_characters",
        "chronicle_events",
        "chats",
    ):
        op.drop_table(table)
