"""Shapes of the API of the work behind the reply, rolling summaries among it."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.core.audience import Audience, decode_audience
from backend.enrichment.models import EnrichmentRun, RunKind, RunState
from backend.enrichment.runs.store import EffectKind, RunDetail, RunEffect
from backend.enrichment.summaries.store import MAX_SUMMARY_CHARS, StoredSummary
from backend.http.schemas import ShownProblem, make_struct
from backend.jobs.schemas import JobView

Position = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]

WrittenKind = EffectKind | Literal["summary_written", "questions_written"]

KeptBecause = Literal["edited", "changed", "gone"]


class WrittenView(msgspec.Struct, kw_only=True, frozen=True):
    """Something that a run wrote, changed or removed. `container_id` is its chronicle or book."""

    what: WrittenKind
    id: UUID
    container_id: UUID
    title: str
    because: str

    @classmethod
    def of(cls, effect: RunEffect) -> "WrittenView":
        """The view of an effect."""
        return make_struct(cls, effect)


class RefusedView(msgspec.Struct, kw_only=True, frozen=True):
    """A call of the model's that came to nothing, and what the model was told."""

    tool: str
    reason: str
    duplicate_of: UUID | None


class RunView(msgspec.Struct, kw_only=True, frozen=True):
    """One run of the agent, the summary, or other work behind the reply.

    It read the path from `from_position` to `to_position`: `message_ids`; `memory_ids` is what was
    near. `why` is the reason for going on or not; `kinds` are those of events that triage expects,
    or a reply's tags. Tokens are as the provider reported them. `error` is the last part of the
    `type` that the problem would have as an answer; `problem` has its words.
    """

    id: UUID
    kind: RunKind
    state: RunState
    model: str
    chronicle_id: UUID | None
    from_position: int
    to_position: int
    why: str
    significant: bool
    kinds: list[str]
    note: str
    message_ids: list[UUID]
    memory_ids: list[UUID]
    written: list[WrittenView]
    refused: list[RefusedView]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    duration_ms: int
    error: str | None
    problem: ShownProblem | None
    created_at: datetime
    undone_at: datetime | None
    can_undo: bool

    @classmethod
    def of(cls, row: EnrichmentRun, detail: RunDetail) -> "RunView":
        """The view of a row and of what was sealed in it."""
        shown = ("why", "significant", "kinds", "note", "problem", "message_ids", "memory_ids")
        return make_struct(
            cls,
            row,
            **{name: getattr(detail, name) for name in shown},
            written=[WrittenView.of(effect) for effect in detail.effects],
            refused=[make_struct(RefusedView, each) for each in detail.refused],
            can_undo=row.state == "done"
            and (bool(detail.effects) or row.kind == "summary" or _has_questions(row, detail)),
        )


def _has_questions(row: EnrichmentRun, detail: RunDetail) -> bool:
    return row.kind == "questions" and detail.significant


class EnrichmentView(msgspec.Struct, kw_only=True, frozen=True):
    """The work behind a chat's replies: how it stands, and its runs, newest first.

    `model` is the one that would be asked now. `pending` is how many messages wait to be read.
    `job` is the one that waits or runs for this chat, or gave up (`dead`) and left them unread.
    Tokens are of the last 24 hours, of all of the user's chats; at `tokens_per_day` the work waits.
    """

    enabled: bool
    chronicle_id: UUID | None
    model: str
    pending: int
    job: JobView | None
    tokens_today: int
    tokens_per_day: int
    items: list[RunView]
    next: str | None = None


class KeptView(msgspec.Struct, kw_only=True, frozen=True):
    """What undoing left alone.

    `edited` was changed by a person since, `changed` by a later run, and `gone` is no longer there.
    """

    id: UUID
    title: str
    reason: KeptBecause


class UndoView(msgspec.Struct, kw_only=True, frozen=True):
    """What was taken back, and what was not."""

    undone: list[WrittenView]
    kept: list[KeptView]


class NewRebuild(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The chat that a chronicle is rebuilt from, and which stretch of its active path.

    Positions count from 0; absent is the beginning and the end.
    """

    chat_id: UUID
    from_position: Position | None = None
    to_position: Position | None = None


class AmountRange(msgspec.Struct, kw_only=True, frozen=True):
    """Between these."""

    least: int
    most: int


class RebuildEstimate(msgspec.Struct, kw_only=True, frozen=True):
    """What a rebuild would take. Tokens are estimates; a provider may count differently.

    `least` is where nothing of note happened, `most` where every batch takes all calls it may.
    """

    messages: int
    batches: int
    calls: AmountRange
    prompt_tokens: AmountRange
    completion_tokens: AmountRange
    events_to_replace: int
    entries_to_replace: int
    model: str


SummaryText = Annotated[str, msgspec.Meta(max_length=MAX_SUMMARY_CHARS)]


class SummaryView(msgspec.Struct, kw_only=True, frozen=True):
    """A summary of a chat's active path, from its beginning through a message.

    `model` wrote it; null where a person did, where that is no longer known, or where no model
    would sum up the lines and they were passed over. `edited`: a person wrote or changed it.
    `is_used`: the next prompt would have it. `audience` says whom it is for: `public` if all
    messages that it covers are, else `gm`; with hidden information whoever it was written for.
    """

    text: str
    through_message_id: UUID
    through_position: int
    edited: bool
    model: str | None
    revision: int
    is_used: bool
    audience: Audience
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, summary: StoredSummary, *, is_used: bool) -> "SummaryView":
        """The view of what is stored."""
        return make_struct(
            cls,
            summary,
            through_message_id=summary.message_id,
            through_position=summary.position,
            edited=summary.is_edited,
            is_used=is_used,
            audience=decode_audience(summary.audience),
        )


class NewSummary(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a summary is to say.

    `through_message_id` is the last message that it covers. Absent, the current summary is changed.
    """

    text: SummaryText
    through_message_id: UUID | None = None
