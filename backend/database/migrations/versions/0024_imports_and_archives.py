"""Imports, account archives, and the files of messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_24"
down_revision = "2026_11_23"
branch_labels = None
depends_on = None

_MESSAGES = (
    "sealed_author",
    "sealed_content",
    "sealed_thinking",
    "sealed_injected_context",
    "sealed_typed",
)
_COUNTED = {
    "stored_files": ("sealed_description", "sealed_data"),
    "message_files": ("sealed_reference",),
    "imports": ("sealed_options",),
    "import_results": ("sealed_detail",),
    "imported_files": ("sealed_source",),
}


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column(
        "chats", sa.Column("is_ready", sa.Boolean(), server_default=sa.true(), nullable=False)
    )
    op.add_column("messages", sa.Column("sealed_source", sa.LargeBinary()))
    stop_counting(connection, "messages")
    count_table(connection, "messages", (*_MESSAGES, "sealed_source"))
    op.create_table(
        "stored_files",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("digest", sa.LargeBinary()),
        required("sealed_description", sa.LargeBinary()),
        required("sealed_data", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index(
        "ix_stored_files_user_id_digest", "stored_files", ["user_id", "digest"], unique=True
    )
    op.create_table(
        "message_files",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("message_id", "messages.id", index=True),
        reference("file_id", "stored_files.id", ondelete="SET NULL", nullable=True, index=True),
        required("place", sa.Integer()),
        required("sealed_reference", sa.LargeBinary()),
    )
    op.create_table(
        "imports",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("state", sa.String()),
        required("sealed_options", sa.LargeBinary()),
        required("size", sa.BigInteger()),
        sa.Column("job_id", Id()),
        required("expires_at", UtcTime()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_imports_user_id_id", "imports", ["user_id", "id"])
    op.create_table(
        "import_results",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("import_id", "imports.id"),
        required("path_digest", sa.LargeBinary()),
        required("outcome", sa.String()),
        sa.Column("kind", sa.String()),
        sa.Column("item_id", Id()),
        required("sealed_detail", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index("ix_import_results_import_id_id", "import_results", ["import_id", "id"])
    op.create_table(
        "imported_files",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("digest", sa.LargeBinary()),
        required("kind", sa.String()),
        required("item_id", Id()),
        sa.Column("message_id", Id()),
        sa.Column("sealed_source", sa.LargeBinary()),
        required("created_at", UtcTime()),
    )
    op.create_index("ix_imported_files_user_id_digest", "imported_files", ["user_id", "digest"])
    op.create_index("ix_imported_files_item_id", "imported_files", ["item_id"])
    op.create_table(
        "archives",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        sa.Column("job_id", Id()),
        required("size", sa.BigInteger()),
        required("unreadable", sa.Integer()),
        required("expires_at", UtcTime()),
        required("created_at", UtcTime()),
    )
    op.create_index("ix_archives_user_id_id", "archives", ["user_id", "id"])
    for table, columns in _COUNTED.items():
        count_table(connection, table, columns)


def downgrade() -> None:
    connection = op.get_bind()
    for table in _COUNTED:
        stop_counting(connection, table)
    for table in (
        "archives",
        "imported_files",
        "import_results",
        "imports",
        "message_files",
        "stored_files",
    ):
        op.drop_table(table)
    stop_counting(connection, "messages")
    op.drop_column("messages", "sealed_source")
    count_table(connection, "messages", _MESSAGES)
    op.drop_column("chats", "is_ready")
