"""Shapes of the API of the work behind the reply."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.enrichment.detail import EffectKind, RunDetail, RunEffect
from backend.enrichment.models import EnrichmentRun, RunKind, RunState
from backend.jobs.schemas import JobView

Position = Annotated[int, msgspec.Meta(ge=0, le=2_000_000_000)]

WrittenKind = EffectKind | Literal["summary_written"]

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
        return cls(
            what=effect.what,
            id=effect.id,
            container_id=effect.container_id,
            title=effect.title,
            because=effect.because,
        )


class RefusedView(msgspec.Struct, kw_only=True, frozen=True):
    """A call of the model's that came to nothing, and what the model was told."""

    tool: str
    reason: str
    duplicate_of: UUID | None


class RunView(msgspec.Struct, kw_only=True, frozen=True):
    """One run of the agent, or of the summary.

    It read the path from `from_position` to `to_position`: `message_ids`; `memory_ids` is what was
    near. `why` is the reason for going on or not. Tokens are as the provider reported them. `error`
    is the last part of the `type` that the problem would have as an answer.
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
    created_at: datetime
    undone_at: datetime | None
    can_undo: bool

    @classmethod
    def of(cls, row: EnrichmentRun, detail: RunDetail) -> "RunView":
        """The view of a row and of what was sealed in it."""
        return cls(
            id=row.id,
            kind=row.kind,
            state=row.state,
            model=row.model,
            chronicle_id=row.chronicle_id,
            from_position=row.from_position,
            to_position=row.to_position,
            why=detail.why,
            significant=detail.significant,
            kinds=detail.kinds,
            note=detail.note,
            message_ids=detail.message_ids,
            memory_ids=detail.memory_ids,
            written=[WrittenView.of(effect) for effect in detail.effects],
            refused=[
                RefusedView(tool=each.tool, reason=each.reason, duplicate_of=each.duplicate_of)
                for each in detail.refused
            ],
            calls=row.calls,
            prompt_tokens=row.prompt_tokens,
            completion_tokens=row.completion_tokens,
            duration_ms=row.duration_ms,
            error=row.error,
            created_at=row.created_at,
            undone_at=row.undone_at,
            can_undo=row.state == "done" and bool(detail.effects or row.kind == "summary"),
        )


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
