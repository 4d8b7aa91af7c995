"""Card files as they came in, and regex scripts of accounts and cards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "card_files",
        sa.Column("id", Id(), nullable=False),
        sa.Column("user_id", Id(), nullable=False),
        sa.Column("character_id", Id(), nullable=False),
        sa.Column("sealed_data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", UtcTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["character_id"],
            ["characters.id"],
            name=op.f("fk_card_files_character_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_card_files_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_card_files")),
        sa.UniqueConstraint("character_id", name=op.f("uq_card_files_character_id")),
    )
    op.create_index(op.f("ix_card_files_user_id"), "card_files", ["user_id"])
    count_table(op.get_bind(), "card_files", ("sealed_data",))
    op.add_column("users", sa.Column("sealed_scripts", sa.LargeBinary(), nullable=True))
    op.add_column(
        "users", sa.Column("scripts_revision", sa.Integer(), nullable=False, server_default="0")
    )
    op.add_column("characters", sa.Column("scripts_allowed", sa.Boolean(), nullable=True))
    # Cards are large: without it, all of a user's would be read for a column behind them.
    op.create_index(
        "ix_characters_scripts",
        "characters",
        ["user_id"],
        sqlite_where=sa.text("scripts_allowed IS NOT NULL"),
        postgresql_where=sa.text("scripts_allowed IS NOT NULL"),
    )
    op.add_column(
        "avatars",
        sa.Column("is_imported", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    op.drop_column("avatars", "is_imported")
    op.drop_index("ix_characters_scripts", table_name="characters")
    op.drop_column("characters", "scripts_allowed")
    op.drop_column("users", "scripts_revision")
    op.drop_column("users", "sealed_scripts")
    stop_counting(op.get_bind(), "card_files")
    op.drop_table("card_files")
