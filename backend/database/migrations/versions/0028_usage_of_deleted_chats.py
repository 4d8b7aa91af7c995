"""Usage that no chat lists, and an index for the usage of an account since a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.migrations.columns import create_large_index, drop_large_index, required

revision = "2026_11_28"
down_revision = "2026_11_27"
branch_labels = None
depends_on = None

PHASE = "expand"

COUNTS = ("turns", "runs", "unreported")
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "thinking_tokens")


def upgrade() -> None:
    create_large_index("ix_turns_user_id_created_at", "turns", ["user_id", "created_at"])
    drop_large_index("ix_turns_user_id", "turns")
    op.add_column("token_ledger", sa.Column("model", sa.String()))
    for name in COUNTS:
        op.add_column("token_ledger", required(name, sa.Integer(), server_default="0"))
    for name in TOKENS:
        op.add_column("token_ledger", required(name, sa.BigInteger(), server_default="0"))


def downgrade() -> None:
    op.create_index("ix_turns_user_id", "turns", ["user_id"])
    op.drop_index("ix_turns_user_id_created_at", "turns")
    for name in (*TOKENS, *COUNTS, "model"):
        op.drop_column("token_ledger", name)
