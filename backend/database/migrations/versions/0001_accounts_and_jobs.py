"""Accounts and their keys, jobs, quotas, and the state of the search index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import reference, required, where
from backend.database.types import Id, UtcTime

revision = "2026_11_1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "instance_keys",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        required("root_version", sa.Integer()),
        required("wrapped", sa.LargeBinary()),
    )
    op.create_table(
        "login_failures",
        sa.Column("key", sa.LargeBinary(), primary_key=True),
        required("failures", sa.Float(precision=53)),
        required("last_at", UtcTime()),
    )
    op.create_table(
        "users",
        sa.Column("id", Id(), primary_key=True),
        required("name_lookup", sa.LargeBinary(), unique=True),
        required("wrapped_name", sa.LargeBinary()),
        required("is_administrator", sa.Boolean()),
        required("is_disabled", sa.Boolean()),
        required("key_mode", sa.String()),
        required("key_generation", sa.Integer()),
        sa.Column("factors_digest", sa.LargeBinary()),
        required("newest_data_key", sa.Integer()),
        required("wrapped_derivation_key", sa.LargeBinary()),
        required("settings_mac", sa.LargeBinary()),
        sa.Column("sealed_settings", sa.LargeBinary()),
        sa.Column("sealed_variables", sa.LargeBinary()),
        sa.Column("sealed_scripts", sa.LargeBinary()),
        required("settings_revision", sa.Integer()),
        required("scripts_revision", sa.Integer()),
        required("new_data_key_due", sa.Boolean()),
        required("created_at", UtcTime()),
    )
    op.create_table(
        "account_activity",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("sealed_entry", sa.LargeBinary()),
        sa.Column("sealed_address", sa.LargeBinary()),
        required("created_at", UtcTime(), index=True),
    )
    op.create_index(
        "ix_account_activity_addressed",
        "account_activity",
        ["created_at"],
        **where("sealed_address IS NOT NULL"),
    )
    op.create_index("ix_account_activity_user_id_id", "account_activity", ["user_id", "id"])
    op.create_table(
        "data_keys",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("number", sa.Integer()),
        required("wrapped", sa.LargeBinary()),
        required("created_at", UtcTime()),
        sa.UniqueConstraint("user_id", "number"),
    )
    op.create_table(
        "key_slots",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("kind", sa.String()),
        required("wrapped", sa.LargeBinary()),
        sa.Column("lookup", sa.LargeBinary(), unique=True),
        sa.Column("kdf", sa.LargeBinary()),
        required("root_version", sa.Integer()),
        sa.Column("generation", sa.Integer()),
        required("scope", sa.String()),
        sa.Column("sealed_label", sa.LargeBinary()),
        required("created_at", UtcTime()),
        sa.Column("last_used_at", UtcTime()),
        sa.Column("expires_at", UtcTime()),
    )
    op.create_index("ix_key_slots_user_id_kind", "key_slots", ["user_id", "kind"])
    op.create_table(
        "second_factors",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("kind", sa.String()),
        required("is_on", sa.Boolean()),
        required("sealed_secret", sa.LargeBinary()),
        sa.Column("sealed_label", sa.LargeBinary()),
        required("counter", sa.BigInteger()),
        required("sign_count", sa.BigInteger()),
        required("created_at", UtcTime()),
        sa.Column("last_used_at", UtcTime()),
    )
    op.create_table(
        "known_addresses",
        sa.Column("key", sa.LargeBinary(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("last_at", UtcTime(), index=True),
    )
    op.create_table(
        "invitations",
        sa.Column("id", Id(), primary_key=True),
        reference("created_by", "users.id", index=True),
        required("lookup", sa.LargeBinary(), unique=True),
        required("created_at", UtcTime()),
        required("expires_at", UtcTime()),
        sa.Column("used_at", UtcTime()),
    )
    op.create_table(
        "idempotent_requests",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("key_digest", sa.LargeBinary()),
        required("request_digest", sa.LargeBinary()),
        sa.Column("status", sa.Integer()),
        sa.Column("sealed_response", sa.LargeBinary()),
        required("is_done", sa.Boolean()),
        sa.Column("made_id", Id()),
        required("created_at", UtcTime(), index=True),
        sa.UniqueConstraint("user_id", "key_digest"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", nullable=True),
        required("share", Id()),
        required("kind", sa.String()),
        sa.Column("lane", Id()),
        required("payload", sa.String()),
        sa.Column("dedupe_key", sa.String()),
        required("state", sa.String()),
        required("attempts", sa.Integer()),
        required("leases_lost", sa.Integer()),
        required("run_after", UtcTime()),
        sa.Column("lease_owner", Id()),
        sa.Column("lease_until", UtcTime()),
        required("fence", sa.Integer()),
        required("progress_done", sa.Integer()),
        required("progress_total", sa.Integer()),
        sa.Column("error", sa.String()),
        sa.Column("wrapped_key", sa.LargeBinary()),
        sa.Column("root_version", sa.Integer()),
        sa.Column("key_until", UtcTime()),
        required("created_at", UtcTime()),
        required("updated_at", UtcTime()),
    )
    op.create_index("ix_jobs_due", "jobs", ["state", "share", "run_after"])
    op.create_index("ix_jobs_lane", "jobs", ["lane", "state", "id"])
    op.create_index("ix_jobs_user_id_id", "jobs", ["user_id", "id"])
    op.create_index(
        "ix_jobs_waiting_once",
        "jobs",
        ["dedupe_key"],
        unique=True,
        **where("state IN ('queued', 'waiting_key')"),
    )
    op.create_table(
        "storage_ledger",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        reference("user_id", "users.id"),
        required("bytes", sa.BigInteger()),
    )
    op.create_index("ix_storage_ledger_user_id_bytes", "storage_ledger", ["user_id", "bytes"])
    op.create_table(
        "token_ledger",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id"),
        required("day", sa.Date()),
        required("tokens", sa.Integer()),
    )
    op.create_index("ix_token_ledger_user_id_day", "token_ledger", ["user_id", "day"])
    op.create_table(
        "token_ratios",
        reference("user_id", "users.id", primary_key=True),
        sa.Column("model", sa.String(), primary_key=True),
        required("ratio", sa.Float(precision=53)),
        required("samples", sa.Integer()),
    )
    op.create_index("ix_token_ratios_model_ratio", "token_ratios", ["model", "ratio"])
    op.create_table(
        "embeddings",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("digest", sa.LargeBinary()),
        required("sealed_vector", sa.LargeBinary()),
        required("used_at", UtcTime(), index=True),
        sa.UniqueConstraint("user_id", "digest"),
    )
    op.create_table(
        "index_states",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("collection", sa.String()),
        required("state", sa.String()),
        required("created_at", UtcTime()),
        sa.UniqueConstraint("user_id", "collection"),
    )
    op.create_table(
        "index_changes",
        sa.Column("id", Id(), primary_key=True),
        reference("user_id", "users.id", index=True),
        required("kind", sa.String()),
        required("container_id", Id()),
        sa.Column("source_id", Id()),
    )
    op.create_index("ix_index_changes_container_id_id", "index_changes", ["container_id", "id"])


def downgrade() -> None:
    for table in (
        "index_changes",
        "index_states",
        "embeddings",
        "token_ratios",
        "token_ledger",
        "storage_ledger",
        "jobs",
        "idempotent_requests",
        "invitations",
        "known_addresses",
        "second_factors",
        "key_slots",
        "data_keys",
        "account_activity",
        "users",
        "login_failures",
        "instance_keys",
    ):
        op.drop_table(table)
