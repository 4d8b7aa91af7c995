"""What the model for triage took of a run, where it is another than the run's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_13"
down_revision = "2026_11_12"
branch_labels = None
depends_on = None

_COUNTS = ("triage_prompt_tokens", "triage_completion_tokens")


def upgrade() -> None:
    op.add_column("enrichment_runs", sa.Column("triage_model", sa.String()))
    for name in _COUNTS:
        count: sa.Column[int] = sa.Column(name, sa.Integer(), server_default="0", nullable=False)
        op.add_column("enrichment_runs", count)


def downgrade() -> None:
    for name in (*_COUNTS, "triage_model"):
        op.drop_column("enrichment_runs", name)
