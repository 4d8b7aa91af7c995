"""What a user sets once for all chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar
from uuid import UUID

import msgspec

from backend.context.budget import Budget
from backend.errors import ValidationError
from backend.generation.sampling import Sampling
from backend.settings import MIN_TOTAL, Settings

ValueT = TypeVar("ValueT")
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)
Tokens = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
ModelId = Annotated[str, msgspec.Meta(max_length=200)]
LongText = Annotated[str, msgspec.Meta(max_length=200_000)]


class SettingsStruct(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of one kind, as they are stored and patched: what is absent is the default."""


class BudgetSettings(SettingsStruct, frozen=True, kw_only=True):
    """Token budgets; what is absent is the server's default."""

    total: Annotated[int, msgspec.Meta(ge=MIN_TOTAL, le=10_000_000)] | None = None
    history: Tokens | None = None
    retrieval: Tokens | None = None
    reply_reserve: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    min_tail_messages: Annotated[int, msgspec.Meta(ge=2, le=1000)] | None = None


LoreMode = Literal["keys", "keys_and_meaning", "meaning"]
"""The search for lorebook entries: by keys, by meaning, or by both. Without an embedding model the
words of an entry stand in for its meaning, and all entries are found by their keys as well."""

DEFAULT_MODE: LoreMode = "keys_and_meaning"

MemberBooks = Literal["speaker", "all"]
"""The books that a turn of a group scans: the speaker's, or those of all members."""

LoreStrategy = Literal["evenly", "character_first", "global_first"]
"""Whether entries of characters' books, or of global ones, come first. World Info's 0 to 2."""


class LoreOverrides(SettingsStruct, frozen=True, kw_only=True):
    """Defaults for scanning lorebooks whose books and entries set nothing; absent is the default.

    `scan_depth` is in messages (2), `budget_percent` in per cent of the total budget (25),
    `budget_cap` in tokens (0: none). Where room is short, history leaves lore that came in what it
    needs, up to `reserve_percent` of the prompt (25). `include_names` scans `Name: text` and not
    the text alone. `min_activations` looks further back, as far as `min_activations_depth`, until
    so many entries are found (0: no further). `strategy` orders the entries that come after
    those of the chat's and the persona's books: the characters' first, the global books' first, or
    evenly, by their own order. `mode` says how entries are found: by their keys, by what they are
    about, or both. `member_books` applies to chats with several characters: with "speaker" (the
    default) the card's book and the linked books of a character are used only in its own replies,
    with "all" the books of all members are used in every reply.
    """

    scan_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    budget_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    budget_cap: Tokens | None = None
    reserve_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    include_names: bool | None = None
    recursive: bool | None = None
    max_recursion_steps: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    case_sensitive: bool | None = None
    match_whole_words: bool | None = None
    use_group_scoring: bool | None = None
    min_activations: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    min_activations_depth: Annotated[int, msgspec.Meta(ge=0, le=1_000)] | None = None
    strategy: LoreStrategy | None = None
    mode: LoreMode | None = None
    member_books: MemberBooks | None = None


class SourceWeights(SettingsStruct, frozen=True, kw_only=True):
    """How much each source of memory counts against the others; 0 leaves it out."""

    lore: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    message: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    event: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    campaign: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0


class MemorySettings(SettingsStruct, frozen=True, kw_only=True):
    """What search brings into a prompt; absent is the default.

    `min_relevance` is from 0, where everything passes that was found, to 1; without it lines that
    are near by their meaning alone come in as well, up to 4,000 tokens of memories. `max_items` is
    how many memories a prompt gets at most (40, and 100 where they are that short). `rephrase` has
    the model of triage put what a turn looks for in other words, for a second search; off.
    """

    enabled: bool | None = None
    min_relevance: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_items: Annotated[int, msgspec.Meta(ge=0, le=200)] | None = None
    rephrase: bool | None = None
    weights: SourceWeights | None = None


class EnrichmentSettings(SettingsStruct, frozen=True, kw_only=True):
    """The agent that keeps chronicles, and what writes summaries; absent is the default.

    `model` is the model that they ask where `task_models` names none. `may_edit_lore` lets the
    agent change entries of lorebooks that the user wrote; without it only those that it made
    itself.
    """

    model: ModelId | None = None
    may_edit_lore: bool | None = None


class TaskModels(SettingsStruct, frozen=True, kw_only=True):
    """The models of the tasks beside the reply; absent is what `enrichment.model` says.

    `triage` says whether lines are worth keeping, and puts what a turn looks for in other words.
    `agent` keeps the chronicle and proposes terms for a glossary. `summary` sums up chats, scenes
    and chapters. `compaction` brings a campaign's state up to date. `suggestions` writes lines that
    the user could say next; without it the reply's model.
    """

    triage: ModelId | None = None
    agent: ModelId | None = None
    summary: ModelId | None = None
    suggestions: ModelId | None = None
    compaction: ModelId | None = None


class AccountTaskModels(TaskModels, frozen=True, kw_only=True):
    """The same for an account, which names an embedding model as well.

    `embedding` turns the account's texts into vectors, for memory by meaning; absent is the
    installation's model. It is `<provider>/<model>`, with any model of a provider that can embed.
    """

    embedding: ModelId | None = None


def named_models(tasks: TaskModels, enrichment: EnrichmentSettings) -> set[str]:
    """The ids of chat models that settings name for tasks."""
    named = (enrichment.model, *(getattr(tasks, name) for name in TaskModels.__struct_fields__))
    return {model_id for model_id in named if model_id is not None}


ReasoningSent = Annotated[int, msgspec.Meta(ge=0, le=50)]
"""Of how many last replies what the model thought is sent with them; absent is none."""


class UserSettings(SettingsStruct, frozen=True, kw_only=True):
    """Defaults of one user's chats. Sampling belongs to the `model` of the same settings.

    `keep_other_speakers` keeps lines that a reply says for the user or for another character. By
    default a reply ends before a line that begins with one of their names and a colon.
    `expand_macros` expands macros in the user's lines before they are stored; on by default.
    """

    model: ModelId | None = None
    task_models: AccountTaskModels = msgspec.field(default_factory=AccountTaskModels)
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
    persona_id: UUID | None = None
    preset_id: UUID | None = None
    reasoning_sent: ReasoningSent | None = None
    keep_other_speakers: bool | None = None
    expand_macros: bool | None = None
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None


def decode_settings(data: bytes, kind: type[SettingsT]) -> SettingsT:
    """Decode stored settings. Members that have been removed since they were stored are ignored."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        values = msgspec.json.decode(data)
        values.get("memory", {}).pop("questions", None)
        return msgspec.convert(values, kind)


def check_budgets(
    chain: Sequence[BudgetSettings], settings: Settings, *, before: BudgetSettings
) -> None:
    """Raise `ValidationError` for budgets that are too large or leave nothing for a prompt.

    Args:
        chain: Budgets as they are looked up, the nearest first: it is being set.
        settings: The server's own budgets, for those that none of them says, and its maxima.
        before: What the nearest one was. What stays is not checked against maxima: an operator may
            have lowered them since.
    """
    for name, maximum in _maxima(settings).items():
        wanted: int | None = getattr(chain[0], name)
        if wanted is not None and wanted > maximum and wanted != getattr(before, name):
            raise ValidationError(
                f"budgets.{name}: {wanted:,} tokens are more than this server's maximum of "
                f"{maximum:,} (TALEKEEPER_MAX_BUDGET_{name.upper()})."
            )
    window = first_set(chain, "total", settings.budget_total)
    reserve = first_set(chain, "reply_reserve", settings.budget_reply_reserve)
    if reserve >= window:
        raise ValidationError(
            f"budgets: a total of {window:,} tokens with a reply_reserve of {reserve:,} leaves "
            "nothing for the prompt."
        )


def effective_budgets(chain: Sequence[BudgetSettings], settings: Settings) -> Budget:
    """The budgets that hold: as they are looked up, the nearest first, within the server's maxima.

    A reply reserve that a lowered maximum of the total leaves too little beside takes half of it.
    """
    wanted = {
        name: first_set(chain, name, getattr(settings, f"budget_{name}"))
        for name in BudgetSettings.__struct_fields__
    }
    allowed = {name: min(wanted[name], most) for name, most in _maxima(settings).items()}
    if "total" in allowed and allowed["total"] < wanted["total"]:
        reserve = allowed.get("reply_reserve", wanted["reply_reserve"])
        allowed["reply_reserve"] = min(reserve, allowed["total"] // 2)
    return Budget(**{**wanted, **allowed})


def _maxima(settings: Settings) -> dict[str, int]:
    """The server's maxima, by the budget's name."""
    maxima = {
        "total": settings.max_budget_total,
        "reply_reserve": settings.max_budget_reply_reserve,
    }
    return {name: maximum for name, maximum in maxima.items() if maximum}


def first_set(chain: Sequence[msgspec.Struct], name: str, default: ValueT) -> ValueT:
    """The first setting of that name that is set."""
    for settings in chain:
        value: ValueT | None = getattr(settings, name)
        if value is not None:
            return value
    return default
