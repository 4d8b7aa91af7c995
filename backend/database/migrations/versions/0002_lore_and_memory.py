"""Jobs, lorebooks, and what stands behind the index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "embeddings",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_vector", sa.LargeBinary(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_embeddings_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_embeddings")),
        sa.UniqueConstraint("user_id", "digest", name=op.f("uq_embeddings_user_id_digest")),
    )
    op.create_index(op.f("ix_embeddings_used_at"), "embeddings", ["used_at"], unique=False)
    op.create_index(op.f("ix_embeddings_user_id"), "embeddings", ["user_id"], unique=False)
    op.create_table(
        "index_changes",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("container_id", Id(), nullable=False),
        sa.Column("source_id", Id(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_index_changes_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_index_changes")),
    )
    op.create_index(
        op.f("ix_index_changes_container_id_id"),
        "index_changes",
        ["container_id", "id"],
        unique=False,
    )
    op.create_index(op.f("ix_index_changes_user_id"), "index_changes", ["user_id"], unique=False)
    op.create_table(
        "index_states",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("collection", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_index_states_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_index_states")),
        sa.UniqueConstraint(
            "user_id", "collection", name=op.f("uq_index_states_user_id_collection")
        ),
    )
    op.create_index(op.f("ix_index_states_user_id"), "index_states", ["user_id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=True),
        sa.Column("share", Id(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("lane", Id(), nullable=True),
        sa.Column("payload", sa.String(), nullable=False),
        sa.Column("dedupe_key", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("run_after", UtcTime(), nullable=False),
        sa.Column("lease_owner", Id(), nullable=True),
        sa.Column("lease_until", UtcTime(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("progress_done", sa.Integer(), nullable=False),
        sa.Column("progress_total", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=True),
        sa.Column("root_version", sa.Integer(), nullable=True),
        sa.Column("key_until", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_jobs_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_due", "jobs", ["state", "share", "run_after"], unique=False)
    op.create_index("ix_jobs_lane", "jobs", ["lane", "state", "id"], unique=False)
    op.create_index(op.f("ix_jobs_user_id_id"), "jobs", ["user_id", "id"], unique=False)
    op.create_index(
        "ix_jobs_waiting_once",
        "jobs",
        ["dedupe_key"],
        unique=True,
        sqlite_where=sa.text("state IN ('queued', 'waiting_key')"),
        postgresql_where=sa.text("state IN ('queued', 'waiting_key')"),
    )
    op.create_table(
        "lorebooks",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=True),
        sa.Column("is_global", sa.Boolean(), nullable=False),
        sa.Column("import_digest", sa.LargeBinary(), nullable=True),
        sa.Column("sealed_book", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_source", sa.LargeBinary(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_lorebooks_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_lorebooks_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lorebooks")),
        sa.UniqueConstraint("character_id", name=op.f("uq_lorebooks_character_id")),
    )
    op.create_index(op.f("ix_lorebooks_user_id_id"), "lorebooks", ["user_id", "id"], unique=False)
    op.create_table(
        "chat_lorebooks",
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("lorebook_id", Id(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_chat_lorebooks_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["lorebook_id"],
            ["lorebooks.id"],
            name=op.f("fk_chat_lorebooks_lorebook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("chat_id", "lorebook_id", name=op.f("pk_chat_lorebooks")),
    )
    op.create_index(
        op.f("ix_chat_lorebooks_lorebook_id"), "chat_lorebooks", ["lorebook_id"], unique=False
    )
    op.create_table(
        "lore_entries",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("lorebook_id", Id(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("sealed_entry", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_source", sa.LargeBinary(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lorebook_id"],
            ["lorebooks.id"],
            name=op.f("fk_lore_entries_lorebook_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_lore_entries_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lore_entries")),
    )
    op.create_index(
        op.f("ix_lore_entries_lorebook_id_place"),
        "lore_entries",
        ["lorebook_id", "place"],
        unique=False,
    )
    op.create_index(op.f("ix_lore_entries_user_id"), "lore_entries", ["user_id"], unique=False)
    op.create_table(
        "lorebook_links",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("lorebook_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=True),
        sa.Column("persona_id", Id(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_lorebook_links_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["lorebook_id"],
            ["lorebooks.id"],
            name=op.f("fk_lorebook_links_lorebook_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["persona_id"],
            ["personas.id"],
            name=op.f("fk_lorebook_links_persona_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_lorebook_links_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lorebook_links")),
        sa.UniqueConstraint(
            "character_id", "lorebook_id", name=op.f("uq_lorebook_links_character_id_lorebook_id")
        ),
        sa.UniqueConstraint(
            "persona_id", "lorebook_id", name=op.f("uq_lorebook_links_persona_id_lorebook_id")
        ),
    )
    op.create_index(
        op.f("ix_lorebook_links_lorebook_id"), "lorebook_links", ["lorebook_id"], unique=False
    )
    op.create_index(op.f("ix_lorebook_links_user_id"), "lorebook_links", ["user_id"], unique=False)
    op.create_table(
        "lore_states",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sealed_state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_lore_states_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["id"], ["messages.id"], name=op.f("fk_lore_states_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_lore_states_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lore_states")),
    )
    op.create_index(op.f("ix_lore_states_user_id"), "lore_states", ["user_id"], unique=False)
    op.create_index(
        op.f("ix_lore_states_chat_id_position"),
        "lore_states",
        ["chat_id", "position"],
        unique=False,
    )
    op.add_column("messages", sa.Column("scene_id", Id(), nullable=True))
    op.add_column(
        "messages", sa.Column("scene_place", sa.Integer(), server_default="0", nullable=False)
    )
    op.create_index(op.f("ix_messages_scene_id"), "messages", ["scene_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_messages_scene_id"), table_name="messages")
    op.drop_column("messages", "scene_place")
    op.drop_column("messages", "scene_id")
    op.drop_table("lore_states")
    op.drop_table("lorebook_links")
    op.drop_table("lore_entries")
    op.drop_table("chat_lorebooks")
    op.drop_table("lorebooks")
    op.drop_table("jobs")
    op.drop_table("index_states")
    op.drop_table("index_changes")
    op.drop_table("embeddings")
