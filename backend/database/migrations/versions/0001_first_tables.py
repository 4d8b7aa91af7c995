"""The tables of accounts, characters, chats and turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id, UtcTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "instance_keys",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("root_version", sa.Integer(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instance_keys")),
    )
    op.create_table(
        "login_failures",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_login_failures")),
    )
    op.create_table(
        "token_ratios",
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("ratio", sa.Float(precision=53), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_token_ratios")),
    )
    op.create_table(
        "users",
        sa.Column("id", Id(), nullable=False),
        sa.Column("name_lookup", sa.LargeBinary(), nullable=False),
        sa.Column("wrapped_name", sa.LargeBinary(), nullable=False),
        sa.Column("is_administrator", sa.Boolean(), nullable=False),
        sa.Column("is_disabled", sa.Boolean(), nullable=False),
        sa.Column("key_mode", sa.String(), nullable=False),
        sa.Column("settings_mac", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_settings", sa.LargeBinary(), nullable=True),
        sa.Column("sealed_variables", sa.LargeBinary(), nullable=True),
        sa.Column("settings_revision", sa.Integer(), nullable=False),
        sa.Column("new_data_key_due", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name_lookup", name=op.f("uq_users_name_lookup")),
    )
    op.create_table(
        "characters",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("sealed_summary", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_card", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_source", sa.LargeBinary(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_characters_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_characters")),
    )
    with op.batch_alter_table("characters", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_characters_user_id_id"), ["user_id", "id"], unique=False
        )

    op.create_table(
        "data_keys",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_data_keys_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_keys")),
        sa.UniqueConstraint("user_id", "number", name=op.f("uq_data_keys_user_id_number")),
    )
    with op.batch_alter_table("data_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_data_keys_user_id"), ["user_id"], unique=False)

    op.create_table(
        "idempotent_requests",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("sealed_response", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
            name=op.f("fk_idempotent_requests_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idempotent_requests")),
        sa.UniqueConstraint(
            "user_id", "key_digest", name=op.f("uq_idempotent_requests_user_id_key_digest")
        ),
    )
    with op.batch_alter_table("idempotent_requests", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_idempotent_requests_created_at"), ["created_at"], unique=False
        )

    op.create_table(
        "invitations",
        sa.Column("id", Id(), nullable=False),
        sa.Column("created_by", Id(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("expires_at", UtcTime(), nullable=False),
        sa.Column("used_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"], ["users.id"], name=op.f("fk_invitations_created_by"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitations")),
        sa.UniqueConstraint("lookup", name=op.f("uq_invitations_lookup")),
    )
    with op.batch_alter_table("invitations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_invitations_created_by"), ["created_by"], unique=False)

    op.create_table(
        "key_slots",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(), nullable=True),
        sa.Column("kdf", sa.LargeBinary(), nullable=True),
        sa.Column("root_version", sa.Integer(), nullable=True),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("sealed_label", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("last_used_at", UtcTime(), nullable=True),
        sa.Column("expires_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_key_slots_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key_slots")),
        sa.UniqueConstraint("lookup", name=op.f("uq_key_slots_lookup")),
    )
    with op.batch_alter_table("key_slots", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_key_slots_user_id_kind"), ["user_id", "kind"], unique=False
        )

    op.create_table(
        "personas",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("sealed_persona", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_personas_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_personas")),
    )
    with op.batch_alter_table("personas", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_personas_user_id_id"), ["user_id", "id"], unique=False)

    op.create_table(
        "avatars",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=True),
        sa.Column("persona_id", Id(), nullable=True),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("thumbnail_media_type", sa.String(), nullable=False),
        sa.Column("sealed_image", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_thumbnail", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_avatars_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["persona_id"], ["personas.id"], name=op.f("fk_avatars_persona_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_avatars_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_avatars")),
        sa.UniqueConstraint("character_id", name=op.f("uq_avatars_character_id")),
        sa.UniqueConstraint("persona_id", name=op.f("uq_avatars_persona_id")),
    )
    with op.batch_alter_table("avatars", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_avatars_user_id"), ["user_id"], unique=False)

    op.create_table(
        "character_assets",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=False),
        sa.Column("sealed_description", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_character_assets_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_character_assets_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_character_assets")),
    )
    with op.batch_alter_table("character_assets", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_character_assets_character_id"), ["character_id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_character_assets_user_id"), ["user_id"], unique=False)

    op.create_table(
        "chats",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("sealed_title", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_settings", sa.LargeBinary(), nullable=True),
        sa.Column("sealed_variables", sa.LargeBinary(), nullable=True),
        sa.Column("persona_id", Id(), nullable=True),
        sa.Column("leaf_id", Id(), nullable=True),
        sa.Column("count_unit", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["persona_id"], ["personas.id"], name=op.f("fk_chats_persona_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_chats_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chats")),
    )
    with op.batch_alter_table("chats", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_chats_persona_id"), ["persona_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_chats_user_id_id"), ["user_id", "id"], unique=False)

    op.create_table(
        "chat_characters",
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_chat_characters_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_chat_characters_chat_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("chat_id", "character_id", name=op.f("pk_chat_characters")),
    )
    with op.batch_alter_table("chat_characters", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_chat_characters_character_id"), ["character_id"], unique=False
        )

    op.create_table(
        "context_texts",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("sealed_text", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_context_texts_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_context_texts_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_context_texts")),
        sa.UniqueConstraint("chat_id", "digest", name=op.f("uq_context_texts_chat_id_digest")),
    )
    with op.batch_alter_table("context_texts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_context_texts_user_id"), ["user_id"], unique=False)

    op.create_table(
        "messages",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("parent_id", Id(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("character_id", Id(), nullable=True),
        sa.Column("persona_id", Id(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("is_selected", sa.Boolean(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("path_tokens", sa.Integer(), nullable=False),
        sa.Column("token_counts", sa.String(), nullable=False),
        sa.Column("sealed_author", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_content", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_thinking", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("updated_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_messages_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["messages.id"], name=op.f("fk_messages_parent_id")),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_messages_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.create_index(
            "ix_messages_active_path",
            ["chat_id", "path_tokens"],
            unique=False,
            sqlite_where=sa.text("is_active = 1"),
            postgresql_where=sa.text("is_active"),
        )
        batch_op.create_index(
            "ix_messages_active_position",
            ["chat_id", "position"],
            unique=False,
            sqlite_where=sa.text("is_active = 1"),
            postgresql_where=sa.text("is_active"),
        )
        batch_op.create_index(
            batch_op.f("ix_messages_chat_id_position"), ["chat_id", "position"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_messages_parent_id"), ["parent_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_messages_user_id"), ["user_id"], unique=False)

    op.create_table(
        "turns",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("user_message_id", Id(), nullable=True),
        sa.Column("reply_id", Id(), nullable=True),
        sa.Column("prefix_length", sa.Integer(), nullable=False),
        sa.Column("thinking_prefix_length", sa.Integer(), nullable=False),
        sa.Column("segments", sa.String(), nullable=False),
        sa.Column("totals", sa.String(), nullable=False),
        sa.Column("usage", sa.String(), nullable=True),
        sa.Column("finish", sa.String(), nullable=True),
        sa.Column("sealed_output", sa.LargeBinary(), nullable=True),
        sa.Column("sealed_problem", sa.LargeBinary(), nullable=True),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("lease_until", UtcTime(), nullable=True),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.Column("finished_at", UtcTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_turns_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_turns_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
    )
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_turns_chat_id"), ["chat_id"], unique=False)
        batch_op.create_index(
            "ix_turns_lease",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        )
        batch_op.create_index(batch_op.f("ix_turns_user_id"), ["user_id"], unique=False)
        batch_op.create_index(
            "uq_turns_running",
            ["chat_id"],
            unique=True,
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        )

    op.create_table(
        "context_records",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("chat_id", Id(), nullable=False),
        sa.Column("sealed_record", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["chat_id"], ["chats.id"], name=op.f("fk_context_records_chat_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["id"], ["messages.id"], name=op.f("fk_context_records_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_context_records_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_context_records")),
    )
    with op.batch_alter_table("context_records", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_context_records_chat_id"), ["chat_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_context_records_user_id"), ["user_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("context_records", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_context_records_user_id"))
        batch_op.drop_index(batch_op.f("ix_context_records_chat_id"))

    op.drop_table("context_records")
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_turns_running",
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        )
        batch_op.drop_index(batch_op.f("ix_turns_user_id"))
        batch_op.drop_index(
            "ix_turns_lease",
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        )
        batch_op.drop_index(batch_op.f("ix_turns_chat_id"))

    op.drop_table("turns")
    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_messages_user_id"))
        batch_op.drop_index(batch_op.f("ix_messages_parent_id"))
        batch_op.drop_index(batch_op.f("ix_messages_chat_id_position"))
        batch_op.drop_index(
            "ix_messages_active_position",
            sqlite_where=sa.text("is_active = 1"),
            postgresql_where=sa.text("is_active"),
        )
        batch_op.drop_index(
            "ix_messages_active_path",
            sqlite_where=sa.text("is_active = 1"),
            postgresql_where=sa.text("is_active"),
        )

    op.drop_table("messages")
    with op.batch_alter_table("context_texts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_context_texts_user_id"))

    op.drop_table("context_texts")
    with op.batch_alter_table("chat_characters", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_chat_characters_character_id"))

    op.drop_table("chat_characters")
    with op.batch_alter_table("chats", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_chats_user_id_id"))
        batch_op.drop_index(batch_op.f("ix_chats_persona_id"))

    op.drop_table("chats")
    with op.batch_alter_table("character_assets", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_character_assets_user_id"))
        batch_op.drop_index(batch_op.f("ix_character_assets_character_id"))

    op.drop_table("character_assets")
    with op.batch_alter_table("avatars", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_avatars_user_id"))

    op.drop_table("avatars")
    with op.batch_alter_table("personas", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_personas_user_id_id"))

    op.drop_table("personas")
    with op.batch_alter_table("key_slots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_key_slots_user_id_kind"))

    op.drop_table("key_slots")
    with op.batch_alter_table("invitations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_invitations_created_by"))

    op.drop_table("invitations")
    with op.batch_alter_table("idempotent_requests", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotent_requests_created_at"))

    op.drop_table("idempotent_requests")
    with op.batch_alter_table("data_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_data_keys_user_id"))

    op.drop_table("data_keys")
    with op.batch_alter_table("characters", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_characters_user_id_id"))

    op.drop_table("characters")
    op.drop_table("users")
    op.drop_table("token_ratios")
    op.drop_table("login_failures")
    op.drop_table("instance_keys")
