"""How long the vectors of users' own embedding models are before they are filled up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_12"
down_revision = "2026_11_11"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("index_states", sa.Column("vector_length", sa.Integer()))


def downgrade() -> None:
    op.drop_column("index_states", "vector_length")
