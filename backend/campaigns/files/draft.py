"""A campaign out of a file, before it is stored: its items under new ids, its ledger, its chats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import CampaignFields
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.ledger.changes import (
    DELETION,
    Operations,
    State,
    apply_operations,
    build_creation,
    build_item,
    compare_states,
    exists,
    fold,
)
from backend.campaigns.ledger.item_service import MAX_ITEMS
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import find_references
from backend.campaigns.models import Actor
from backend.campaigns.rules.registry import find_rules
from backend.characters.cards.model import Limit
from backend.chats.transfer import ChatLog
from backend.chronicles.transfer import EventRecord
from backend.core.audience import GM, decode_audience, encode_audience
from backend.core.cpu_pool import check_stopped
from backend.database.base import now
from backend.errors import ValidationError

ZIP_ENTRIES = Limit("archive_entries", 5_000, "archive entries")
MAX_FILES = 4_900
"""Files of entities in a vault: with its lists, it can be imported again."""


MAX_WARNINGS = 200
MAX_CHANGES = 200_000
"""Changes in one ledger."""

MAX_FOLD = 2_000_000_000
"""Of each item its changes times their bytes, and all of these together: a second of folding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """A change. `messages` are the messages that made it, by their ids in the file."""

    item_id: UUID
    operations: Operations
    seq: int
    version: int
    actor: Actor
    is_undone: bool = False
    is_on_path: bool = True
    messages: Sequence[UUID] = ()
    created_at: datetime = field(default_factory=now)


@dataclass(slots=True, kw_only=True)
class CampaignDraft:
    """A campaign that was read.

    `kinds` has every item, `states` those that exist, and `lines` the ledger, in order; the world's
    id is the campaign's own. `uses` counts the replies that said a term. `ids` leads from the ids
    of the file to those here.
    """

    id: UUID
    fields: CampaignFields
    kinds: dict[UUID, Kind] = field(default_factory=dict[UUID, Kind])
    states: dict[UUID, State] = field(default_factory=dict[UUID, State])
    lines: list[LedgerLine] = field(default_factory=list[LedgerLine])
    uses: dict[UUID, int] = field(default_factory=dict[UUID, int])
    ids: Mapping[UUID, UUID] = field(default_factory=dict[UUID, UUID])
    version: int = 0
    edits: int = 0
    compactions: int = 0
    events: Sequence[EventRecord] = ()
    chats: Sequence[ChatLog] = ()
    warnings: list[str] = field(default_factory=list[str])

    def warn(self, text: str) -> None:
        """Add a warning to the answer of the import, up to `MAX_WARNINGS`."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        elif len(self.warnings) == MAX_WARNINGS:
            self.warnings.append("There is more that was not understood.")

    def check_count(self) -> None:
        """Raise `CampaignFileError` if there are more items than a campaign may have."""
        if len(self.kinds) > MAX_ITEMS:
            raise CampaignFileError(f"The file has more than {MAX_ITEMS:,} items.")

    def audience(self, column: str) -> str:
        """An audience of the file as it is stored here; who is not known here may know nothing."""
        audience = decode_audience(column)
        if isinstance(audience, str):
            return audience
        found = [self.ids[each] for each in audience if each in self.ids]
        return encode_audience(found) if found else GM


def settle_ledger(
    draft: CampaignDraft, *, told: Iterable[UUID] = ()
) -> dict[UUID, tuple[State, int]]:
    """Let the ledger lead to the states: for each item its state, and its last change that counts.

    Where it does not lead there, the file was changed by hand, or has no ledger: the states hold,
    and a change is added that leads to them. Of `told`, items that exist by the ledger alone are
    deleted.
    """
    settled: dict[UUID, tuple[State, int]] = {}
    changes = _group_active_lines(draft.lines)
    needed: dict[UUID, Operations] = {}
    for item_id, kind in draft.kinds.items():
        check_stopped()
        lines = changes[item_id]
        state = fold(kind, (line.operations for line in lines))
        settled[item_id] = state, lines[-1].seq if lines else 0
        if item_id in draft.states:
            operations = _compare_with_file(kind, state, draft.states[item_id])
            if operations.list_fields() or not exists(state):
                needed[item_id] = operations
    for item_id in told:
        if item_id not in draft.states and exists(settled[item_id][0]):
            needed[item_id] = DELETION
    last = draft.lines[-1].seq if draft.lines else 0
    draft.version += bool(needed)
    for seq, (item_id, operations) in enumerate(needed.items(), start=last + 1):
        line = LedgerLine(
            item_id=item_id, operations=operations, seq=seq, version=draft.version, actor="import"
        )
        draft.lines.append(line)
        settled[item_id] = (
            apply_operations(draft.kinds[item_id], settled[item_id][0], operations),
            seq,
        )
    return settled


def _compare_with_file(kind: Kind, folded: State, state: State) -> Operations:
    """The change that leads from what the ledger says to what a file says; an empty one if none."""
    if folded == state:
        return Operations()
    item = build_item(kind, state)
    return compare_states(folded, build_creation(item).set) if folded else build_creation(item)


def check_items(draft: CampaignDraft) -> None:
    """Raise `CampaignFileError` where an item is not what its kind and the rules let it be."""
    rules = find_rules(draft.fields.rules)
    for item_id, state in draft.states.items():
        check_stopped()
        kind = draft.kinds[item_id]
        name = state.get("name") or state.get("title") or kind
        try:
            item = build_item(kind, state)
            rules.validate(kind, {}, state)
        except ValidationError as error:
            raise CampaignFileError(f"{name}: {error.detail}") from error
        for member, ids in find_references(item).items():
            if lost := [each for each in ids if each not in draft.kinds]:
                raise CampaignFileError(
                    f"{name}: `{member}` names {lost[0]}, which is not in the file."
                )


def check_work(lines: Sequence[LedgerLine]) -> None:
    """Raise `CampaignFileError` where a ledger would take too long to fold."""
    count: defaultdict[UUID, int] = defaultdict(int)
    size: defaultdict[UUID, int] = defaultdict(int)
    for line in lines:
        count[line.item_id] += 1
        size[line.item_id] += len(msgspec.json.encode(line.operations))
    if sum(count[each] * size[each] for each in count) > MAX_FOLD:
        raise CampaignFileError("ledger.json has too many changes of one item.")


def _group_active_lines(lines: Iterable[LedgerLine]) -> defaultdict[UUID, list[LedgerLine]]:
    """The changes of each item that count."""
    found: defaultdict[UUID, list[LedgerLine]] = defaultdict(list)
    for line in lines:
        if line.is_on_path and not line.is_undone:
            found[line.item_id].append(line)
    return found
