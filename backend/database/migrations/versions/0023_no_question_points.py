"""Remove the questions that messages answer, with their runs, jobs and points in the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from alembic import op

from backend.database.base import new_id, now, split_chunks
from backend.database.migrations.columns import reference, required
from backend.database.stored_bytes import count_table, stop_counting
from backend.database.types import Id, UtcTime

revision = "2026_11_23"
down_revision = "2026_11_22"
branch_labels = None
depends_on = None

_QUESTIONS = sa.table(
    "message_questions",
    sa.column("id", Id()),
    sa.column("user_id", Id()),
    sa.column("chat_id", Id()),
    sa.column("sealed_questions", sa.LargeBinary),
)
_CHANGES = sa.table(
    "index_changes",
    sa.column("id", Id()),
    sa.column("user_id", Id()),
    sa.column("kind", sa.String),
    sa.column("container_id", Id()),
    sa.column("source_id", Id()),
)
_JOBS = sa.table(
    "jobs",
    *(sa.column(name, Id()) for name in ("id", "user_id", "share", "lane")),
    *(sa.column(name, sa.String) for name in ("kind", "payload", "dedupe_key", "state")),
    *(
        sa.column(name, sa.Integer)
        for name in ("attempts", "leases_lost", "fence", "progress_done", "progress_total")
    ),
    *(sa.column(name, UtcTime()) for name in ("run_after", "created_at", "updated_at")),
)
_RUNS = sa.table("enrichment_runs", sa.column("kind", sa.String))
_CLAIMS = sa.table("slot_claims", sa.column("use", sa.String))


def upgrade() -> None:
    connection = op.get_bind()
    answered = _QUESTIONS.select().where(_QUESTIONS.c.sealed_questions.is_not(None))
    _index_again(connection, connection.execute(answered).all())
    op.execute(_JOBS.delete().where(_JOBS.c.kind == "enrichment.questions"))
    op.execute(_RUNS.delete().where(_RUNS.c.kind == "questions"))
    op.execute(_CLAIMS.delete().where(_CLAIMS.c.use == "questions"))
    # Deleted one by one, they no longer count towards what their users store.
    op.execute(_QUESTIONS.delete())
    stop_counting(connection, "message_questions")
    op.drop_table("message_questions")


def _index_again(connection: sa.Connection, answered: Sequence[sa.Row[Any]]) -> None:
    """Have messages indexed again, which deletes all points of theirs that were made before."""
    changes = [
        {
            "id": new_id(),
            "user_id": row.user_id,
            "kind": "message",
            "container_id": row.chat_id,
            "source_id": row.id,
        }
        for row in answered
    ]
    for some in split_chunks(changes):
        connection.execute(_CHANGES.insert(), some)
    waiting = set(
        connection.scalars(
            sa.select(_JOBS.c.dedupe_key).where(
                _JOBS.c.kind == "memory.index", _JOBS.c.state.in_(("queued", "waiting_key"))
            )
        )
    )
    owners = {row.chat_id: row.user_id for row in answered}
    jobs = [_job(chat_id, user_id) for chat_id, user_id in owners.items()]
    if jobs := [job for job in jobs if job["dedupe_key"] not in waiting]:
        connection.execute(_JOBS.insert(), jobs)


def _job(chat_id: UUID, user_id: UUID) -> dict[str, Any]:
    at = now()
    payload = {"kind": "message", "container_id": str(chat_id)}
    return {
        "id": new_id(),
        "user_id": user_id,
        "share": user_id,
        "lane": chat_id,
        "kind": "memory.index",
        "payload": msgspec.json.encode(payload).decode(),
        "dedupe_key": f"memory.index/{chat_id}",
        "state": "queued",
        "attempts": 0,
        "leases_lost": 0,
        "fence": 0,
        "progress_done": 0,
        "progress_total": 0,
        "run_after": at,
        "created_at": at,
        "updated_at": at,
    }


def downgrade() -> None:
    """Create the table without rows: the questions are not kept."""
    op.create_table(
        "message_questions",
        sa.Column("id", Id(), sa.ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
        reference("user_id", "users.id", index=True),
        reference("chat_id", "chats.id"),
        sa.Column("run_id", Id()),
        sa.Column("sealed_questions", sa.LargeBinary()),
        required("written_at", UtcTime()),
    )
    op.create_index(
        "ix_message_questions_chat_id_run_id", "message_questions", ["chat_id", "run_id"]
    )
    count_table(op.get_bind(), "message_questions", ("sealed_questions",))
