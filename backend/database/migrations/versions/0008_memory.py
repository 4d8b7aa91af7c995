"""What memory by meaning needs: see the columns."""

from __future__ import annotations

revision = "2026_11_8"
down_revision = "2026_11_7"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
