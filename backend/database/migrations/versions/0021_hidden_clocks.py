"""Hidden clocks are for the game master alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_21"
down_revision = "2026_11_20"
branch_labels = None
depends_on = None

_ITEMS = sa.table(
    "campaign_items",
    sa.column("kind", sa.String),
    sa.column("exists", sa.Boolean),
    sa.column("is_live", sa.Boolean),
    sa.column("audience", sa.String),
)


def upgrade() -> None:
    # Of a clock `is_live` says that it is visible.
    hidden = sa.and_(_ITEMS.c.kind == "clock", _ITEMS.c.exists, ~_ITEMS.c.is_live)
    op.execute(_ITEMS.update().where(hidden).values(audience="gm"))


def downgrade() -> None:
    """The audiences that hidden clocks had are sealed: they stay the game master's."""
