"""API schemas of background work and rolling summaries."""

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

WrittenKind = EffectKind | Literal["summary_written"]

KeptBecause = Literal["edited", "changed", "gone"]


class WrittenView(msgspec.Struct, kw_only=True, frozen=True):
    """An item that a run wrote, changed or deleted. `container_id` is its chronicle or lorebook."""

    what: WrittenKind
    id: UUID
    container_id: UUID
    title: str
    because: str

    @classmethod
    def from_effect(cls, effect: RunEffect) -> "WrittenView":
        return make_struct(cls, effect)


class RefusedView(msgspec.Struct, kw_only=True, frozen=True):
    """A refused tool call, and the message that the model received."""

    tool: str
    reason: str
    duplicate_of: UUID | None


class RunView(msgspec.Struct, kw_only=True, frozen=True):
    """One run of background work, such as the agent or the summary.

    It read the path from `from_position` to `to_position`: `message_ids`. `memory_ids` are the
    search results that it was shown. `why` is the reason to record something or nothing. `kinds`
    are the event kinds of the triage, or the tags of a reply. Tokens are as reported by the
    provider. `error` is the last part of a problem's `type`; `problem` has its texts.
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
    def from_run(cls, row: EnrichmentRun, detail: RunDetail) -> "RunView":
        shown = ("why", "significant", "kinds", "note", "problem", "message_ids", "memory_ids")
        return make_struct(
            cls,
            row,
            **{name: getattr(detail, name) for name in shown},
            written=[WrittenView.from_effect(effect) for effect in detail.effects],
            refused=[make_struct(RefusedView, each) for each in detail.refused],
            can_undo=row.state == "done" and (bool(detail.effects) or row.kind == "summary"),
        )


class EnrichmentView(msgspec.Struct, kw_only=True, frozen=True):
    """The background work of a chat: its state, and its runs with the newest first.

    `model` is the model that would be asked now. `pending` counts unread messages. `job` is the job
    of this chat that waits, runs or gave up (`dead`). Tokens are those of the last 24 hours in all
    chats of the user. The work waits when they reach `tokens_per_day`.
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
    """An item that an undo has kept.

    It was `edited` by a person, `changed` by a later run, or is already `gone`.
    """

    id: UUID
    title: str
    reason: KeptBecause


class UndoView(msgspec.Struct, kw_only=True, frozen=True):
    """The items that were undone, and those that were kept."""

    undone: list[WrittenView]
    kept: list[KeptView]


class NewRebuild(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The chat, and the range of its active path, to rebuild a chronicle from.

    Positions count from 0. By default the range is the whole path.
    """

    chat_id: UUID
    from_position: Position | None = None
    to_position: Position | None = None


class AmountRange(msgspec.Struct, kw_only=True, frozen=True):
    """A range of amounts."""

    least: int
    most: int


class RebuildEstimate(msgspec.Struct, kw_only=True, frozen=True):
    """The estimated cost of a rebuild. A provider may count tokens differently.

    `least` applies if there is nothing to record, `most` if every batch makes all its calls.
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
    """A summary of a chat's active path, from `from_position` through a message.

    In a group it is a piece that begins where presence changed, or that combines several pieces.
    Otherwise it begins with the first message.

    `model` wrote it. It is null if a person did, if it is no longer known, or if no model
    summarised the lines and they were skipped. `edited`: a person wrote or changed it. `is_used`:
    the next prompt contains it. `audience` is `public` if all its messages are, else `gm`; with
    hidden information it is the audience that it was written for. In a group it has the characters
    that witnessed all of it, or `public` if these are all members.
    """

    id: UUID
    text: str
    from_position: int
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
    def from_summary(
        cls, summary: StoredSummary, *, is_used: bool, audience: str | None = None
    ) -> "SummaryView":
        return make_struct(
            cls,
            summary,
            from_position=summary.begins_at,
            through_message_id=summary.message_id,
            through_position=summary.position,
            edited=summary.is_edited,
            is_used=is_used,
            audience=decode_audience(audience or summary.audience),
        )


class NewSummary(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The text of a summary.

    `through_message_id` is the last message that it covers. Without it, the current summary is
    changed.
    """

    text: SummaryText
    through_message_id: UUID | None = None


class SummaryChange(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The new text of a summary."""

    text: SummaryText


class NewCompaction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The chat of the campaign to read."""

    chat_id: UUID


class CompactionView(msgspec.Struct, kw_only=True):
    """The queued compaction.

    `messages` counts the messages to read; with 0 there is nothing to do. `job_id` is null if a job
    was waiting, which reads them, too. `waits`: an action or a fight is on, and the job waits for
    its end.
    """

    messages: Annotated[int, msgspec.Meta(ge=0)]
    job_id: UUID | None
    waits: bool
