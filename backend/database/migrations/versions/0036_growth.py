"""Deleted accounts, and indexes for rows that are pruned by their age."""

from __future__ import annotations

import os
from typing import Any

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import create_large_index, drop_large_index, where
from backend.database.types import Id, UtcTime

revision = "2026_11_36"
down_revision = "2026_11_31"
branch_labels = None
depends_on = None

PHASE = "expand"

INDEXES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "ix_context_records_created_at": ("context_records", ["created_at"], {}),
    "ix_context_texts_created_at": ("context_texts", ["created_at"], {}),
    "ix_enrichment_runs_detailed": (
        "enrichment_runs",
        ["created_at"],
        where("sealed_detail IS NOT NULL"),
    ),
    "ix_jobs_over": ("jobs", ["state", "created_at"], where("state IN ('done', 'dead')")),
    "ix_jobs_key_until": ("jobs", ["key_until"], where("key_until IS NOT NULL")),
    "ix_token_ledger_day": ("token_ledger", ["day", "user_id"], {}),
    "ix_login_failures_last_at": ("login_failures", ["last_at"], {}),
    "ix_key_slots_expires_at": ("key_slots", ["expires_at"], where("expires_at IS NOT NULL")),
    "ix_invitations_expires_at": ("invitations", ["expires_at"], {}),
    "ix_imports_created_at": ("imports", ["created_at"], {}),
    "ix_import_results_created_at": ("import_results", ["created_at"], {}),
    "ix_stored_files_waits_until": (
        "stored_files",
        ["waits_until"],
        where("waits_until IS NOT NULL"),
    ),
    "ix_chats_hidden": ("chats", ["updated_at"], where("is_ready = 0", postgresql="NOT is_ready")),
}

USERS = sa.table(
    "users",
    sa.column("id", Id()),
    sa.column("name_lookup", sa.LargeBinary()),
    sa.column("deleted_at", UtcTime()),
)

HALF_DELETED = """
    UPDATE users SET deleted_at = created_at, is_administrator = false, is_disabled = true
    WHERE NOT EXISTS (
        SELECT 1 FROM key_slots WHERE key_slots.user_id = users.id AND key_slots.kind = 'password'
    )
"""
"""Accounts that a crash left without keys. The time of their deletion is not known."""


def upgrade() -> None:
    for name, (table, columns, options) in INDEXES.items():
        create_large_index(name, table, columns, **options)
    op.add_column("users", sa.Column("deleted_at", UtcTime()))
    op.create_index(
        "ix_users_deleted_at", "users", ["deleted_at"], **where("deleted_at IS NOT NULL")
    )
    op.create_index("ix_users_open", "users", ["id"], **where("deleted_at IS NULL"))
    op.execute(HALF_DELETED)
    _free_names(op.get_bind())


def _free_names(connection: sa.Connection) -> None:
    """Let others take the names of these accounts, which the next start deletes."""
    for user_id in connection.execute(sa.select(USERS.c.id).where(USERS.c.deleted_at.is_not(None))):
        values = {"name_lookup": os.urandom(32)}
        connection.execute(USERS.update().where(USERS.c.id == user_id[0]).values(values))


def downgrade() -> None:
    op.drop_index("ix_users_open", "users")
    op.drop_index("ix_users_deleted_at", "users")
    op.drop_column("users", "deleted_at")
    for name, (table, *_) in INDEXES.items():
        drop_large_index(name, table)
