"""A request that its client named is marked as done in the transaction that does it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "idempotent_requests",
        sa.Column("is_done", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.add_column("idempotent_requests", sa.Column("made_id", Id(), nullable=True))
    op.drop_column("lorebooks", "import_digest")


def downgrade() -> None:
    op.add_column("lorebooks", sa.Column("import_digest", sa.LargeBinary(), nullable=True))
    op.drop_column("idempotent_requests", "made_id")
    op.drop_column("idempotent_requests", "is_done")
