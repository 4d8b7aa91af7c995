"""Which users' texts are in the collection of an embedding model of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_11"
down_revision = "2026_11_10"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("index_states", sa.Column("model", sa.LargeBinary()))
    chosen: sa.Column[bool] = sa.Column(
        "is_chosen", sa.Boolean(), server_default=sa.false(), nullable=False
    )
    op.add_column("index_states", chosen)


def downgrade() -> None:
    op.drop_column("index_states", "is_chosen")
    op.drop_column("index_states", "model")
