"""What users store, counted by triggers, and the tokens that models took of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COUNTED = {
    "characters": ("sealed_summary", "sealed_card", "sealed_source"),
    "chronicles": ("sealed_chronicle",),
    "embeddings": ("sealed_vector",),
    "idempotent_requests": ("sealed_response",),
    "personas": ("sealed_persona",),
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


def upgrade() -> None:
    op.create_table(
        "storage_ledger",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_storage_ledger_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storage_ledger")),
    )
    op.create_index(op.f("ix_storage_ledger_user_id_bytes"), "storage_ledger", ["user_id", "bytes"])
    op.create_table(
        "token_ledger",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_token_ledger_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token_ledger")),
    )
    op.create_index(op.f("ix_token_ledger_user_id_day"), "token_ledger", ["user_id", "day"])
    for table, columns in COUNTED.items():
        count_table(op.get_bind(), table, columns)


def downgrade() -> None:
    for table in COUNTED:
        stop_counting(op.get_bind(), table)
    op.drop_index(op.f("ix_token_ledger_user_id_day"), table_name="token_ledger")
    op.drop_table("token_ledger")
    op.drop_index(op.f("ix_storage_ledger_user_id_bytes"), table_name="storage_ledger")
    op.drop_table("storage_ledger")
