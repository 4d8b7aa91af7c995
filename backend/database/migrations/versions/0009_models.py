"""Questions that messages answer, for the index; providers of models; prompt presets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_9"
down_revision = "2026_11_8"
branch_labels = None
depends_on = None

COUNTED = {
    "message_questions": ("sealed_questions",),
    "presets": ("sealed_name", "sealed_preset", "sealed_source"),
    "providers": ("sealed_config",),
}
"""Columns whose bytes count towards what a user may store."""


def upgrade() -> None:
    op.create_table(
        "message_questions",
        sa.Column("id", Id(), sa.ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("run_id", Id()),
        sa.Column("sealed_questions", sa.LargeBinary()),
        required("written_at", UtcTime()),
    )
    op.create_index(
        "ix_message_questions_chat_id_run_id", "message_questions", ["chat_id", "run_id"]
    )
    op.create_table(
        "providers",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("slug", sa.String()),
        required("kind", sa.String()),
        required("sealed_config", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
        sa.UniqueConstraint("user_id", "slug", name="uq_providers_user_id_slug"),
    )
    op.create_table(
        "installation_providers",
        sa.Column("id", Id(), primary_key=True),
        required("slug", sa.String()),
        required("kind", sa.String()),
        required("root_version", sa.Integer()),
        required("wrapped_config", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
        sa.UniqueConstraint("slug", name="uq_installation_providers_slug"),
    )
    op.add_column("users", required("providers_revision", sa.Integer(), server_default="0"))
    _create_presets()
    connection = op.get_bind()
    for table, columns in COUNTED.items():
        count_table(connection, table, columns)


def _create_presets() -> None:
    op.create_table(
        "presets",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_name", sa.LargeBinary()),
        required("sealed_preset", sa.LargeBinary()),
        sa.Column("sealed_source", sa.LargeBinary()),
        required("revision", sa.Integer()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_presets_user_id_id", "presets", ["user_id", "id"])


def downgrade() -> None:
    connection = op.get_bind()
    for table in COUNTED:
        stop_counting(connection, table)
    op.drop_column("users", "providers_revision")
    op.drop_table("installation_providers")
    op.drop_table("providers")
    op.drop_table("presets")
    op.drop_table("message_questions")
