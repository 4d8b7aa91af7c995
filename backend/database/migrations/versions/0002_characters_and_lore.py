"""Characters, personas, chronicles and lorebooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required, where
from backend.database.types import Id, UtcTime

revision = "2026_11_2"
down_revision = "2026_11_1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "characters",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_summary", sa.LargeBinary()),
        required("sealed_card", sa.LargeBinary()),
        sa.Column("sealed_source", sa.LargeBinary()),
        sa.Column("scripts_allowed", sa.Boolean()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index(
        "ix_characters_scripts", "characters", ["user_id"], **where("scripts_allowed IS NOT NULL")
    )
    op.create_index("ix_characters_user_id_id", "characters", ["user_id", "id"])
    op.create_table(
        "chronicles",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_chronicle", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_chronicles_user_id_id", "chronicles", ["user_id", "id"])
    op.create_table(
        "personas",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_persona", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_personas_user_id_id", "personas", ["user_id", "id"])
    op.create_table(
        "avatars",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("character_id", "characters.id", nullable=True, unique=True),
        reference("persona_id", "personas.id", nullable=True, unique=True),
        required("media_type", sa.String()),
        required("thumbnail_media_type", sa.String()),
        required("is_imported", sa.Boolean()),
        required("sealed_image", sa.LargeBinary()),
        required("sealed_thumbnail", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_table(
        "card_files",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("character_id", "characters.id", unique=True),
        required("sealed_data", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_table(
        "character_assets",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("character_id", "characters.id", index=True),
        required("sealed_description", sa.LargeBinary()),
        required("sealed_data", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_table(
        "lorebooks",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        reference("character_id", "characters.id", nullable=True, unique=True),
        reference("chronicle_id", "chronicles.id", nullable=True, index=True, unique=True),
        required("is_global", sa.Boolean()),
        required("sealed_book", sa.LargeBinary()),
        sa.Column("sealed_source", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_lorebooks_user_id_id", "lorebooks", ["user_id", "id"])
    op.create_table(
        "lorebook_links",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("lorebook_id", "lorebooks.id", index=True),
        reference("character_id", "characters.id", nullable=True),
        reference("persona_id", "personas.id", nullable=True),
        required("created_at", UtcTime()),
        sa.UniqueConstraint("character_id", "lorebook_id"),
        sa.UniqueConstraint("persona_id", "lorebook_id"),
    )


def downgrade() -> None:
    for table in (
        "lorebook_links",
        "lorebooks",
        "character_assets",
        "card_files",
        "avatars",
        "personas",
        "chronicles",
        "characters",
    ):
        op.drop_table(table)
