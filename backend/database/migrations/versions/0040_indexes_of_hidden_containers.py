"""Indexes of campaigns, chronicles and lorebooks that are being deleted."""

from __future__ import annotations

from backend.database.migrations.columns import create_large_index, drop_large_index, where

revision = "2026_11_40"
down_revision = "2026_11_39"
branch_labels = None
depends_on = None

PHASE = "expand"

TABLES = ("campaigns", "chronicles", "lorebooks")


def upgrade() -> None:
    for table in TABLES:
        is_hidden = where("deleted_at IS NOT NULL")
        create_large_index(f"ix_{table}_deleted_at", table, ["deleted_at"], **is_hidden)


def downgrade() -> None:
    for table in TABLES:
        drop_large_index(f"ix_{table}_deleted_at", table)
