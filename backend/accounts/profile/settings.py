"""A user's settings, which are the defaults of all chats."""

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
    """Settings of one kind, as stored and patched. An absent field has its default."""


class BudgetSettings(SettingsStruct, frozen=True, kw_only=True):
    """Token budgets. An absent field has the server's default."""

    total: Annotated[int, msgspec.Meta(ge=MIN_TOTAL, le=10_000_000)] | None = None
    history: Tokens | None = None
    retrieval: Tokens | None = None
    reply_reserve: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    min_tail_messages: Annotated[int, msgspec.Meta(ge=2, le=1000)] | None = None


LoreMode = Literal["keys", "keys_and_meaning", "meaning"]
"""The search for lorebook entries: by keys, by meaning, or by both. Without an embedding model,
search by meaning compares words instead, and keys find all entries as well."""

DEFAULT_LORE_MODE: LoreMode = "keys_and_meaning"

MemberBooks = Literal["speaker", "all"]
"""The books that a reply in a group uses: the speaker's, or those of all members."""

LoreStrategy = Literal["evenly", "character_first", "global_first"]
"""The order of entries of characters' books and of global books. The values 0 to 2 of World
Info."""


class LoreOverrides(SettingsStruct, frozen=True, kw_only=True):
    """Defaults for lorebook scans, for books and entries that do not set their own.

    `scan_depth` is in messages (2), `budget_percent` in percent of the total budget (25),
    `budget_cap` in tokens (0: no cap). If tokens are scarce, the chat history leaves activated lore
    up to `reserve_percent` of the prompt (25). `include_names` scans `Name: text` instead of only
    the text. `min_activations` scans further back until that many entries are found, at most to
    `min_activations_depth` (0: the whole chat). `strategy` orders the entries after those of the
    chat's and the persona's books: characters' books first, global books first, or both by their
    own order. `mode` chooses the search. `member_books` applies to chats with several characters.
    With "speaker" (the default), a character's book and linked books are used only in its own
    replies. With "all", the books of all members are used in every reply.
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
    """The weight of each source of memory. 0 excludes a source."""

    lore: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    message: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    event: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    campaign: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0


class MemorySettings(SettingsStruct, frozen=True, kw_only=True):
    """Settings of the memory search. An absent field has its default.

    `min_relevance` is from 0, which accepts every result, to 1. Without it, lines found only by
    their meaning are included as well, up to 4,000 tokens of memories. `max_items` is the maximum
    number of memories in a prompt (40; 100 if they are short). With `rephrase` (off by default),
    the triage model rewrites the query of a turn for a second search.
    """

    enabled: bool | None = None
    min_relevance: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_items: Annotated[int, msgspec.Meta(ge=0, le=200)] | None = None
    rephrase: bool | None = None
    weights: SourceWeights | None = None


class EnrichmentSettings(SettingsStruct, frozen=True, kw_only=True):
    """Settings of the chronicle agent and of summaries. An absent field has its default.

    `model` is used if `task_models` names none. `may_edit_lore` lets the agent change lorebook
    entries that the user wrote. Without it, the agent changes only its own entries.
    """

    model: ModelId | None = None
    may_edit_lore: bool | None = None


class TaskModels(SettingsStruct, frozen=True, kw_only=True):
    """The models of background tasks. If one is absent, `enrichment.model` is used.

    `triage` decides which lines are worth keeping, and rewrites search queries. `agent` keeps the
    chronicle and proposes glossary terms. `summary` summarises chats, scenes and chapters, and
    writes titles of chats. `compaction` updates a campaign's state. `suggestions` writes lines that
    the user could say next. If it is absent, the reply's model is used.
    """

    triage: ModelId | None = None
    agent: ModelId | None = None
    summary: ModelId | None = None
    suggestions: ModelId | None = None
    compaction: ModelId | None = None


class AccountTaskModels(TaskModels, frozen=True, kw_only=True):
    """The models of an account's background tasks, and its embedding model.

    `embedding` computes the vectors of the account's texts. If it is absent, the installation's
    model is used. It is `<provider>/<model>`, with any embedding model of a provider.
    """

    embedding: ModelId | None = None


def find_named_models(tasks: TaskModels, enrichment: EnrichmentSettings) -> set[str]:
    named = (enrichment.model, *(getattr(tasks, name) for name in TaskModels.__struct_fields__))
    return {model_id for model_id in named if model_id is not None}


MAX_QUICK_REPLIES = 200
MAX_QUICK_REPLY = 4_000
"""Characters of a quick reply. Settings are opened with every request, so they must be small."""

ReasoningSent = Annotated[int, msgspec.Meta(ge=0, le=50)]
"""The number of last replies that are sent with their reasoning. Absent means none."""


class QuickReply(SettingsStruct, frozen=True, kw_only=True):
    """A text that the user sends often. `set` is the group that it is shown in."""

    set: Annotated[str, msgspec.Meta(max_length=100)] = ""
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    text: Annotated[str, msgspec.Meta(max_length=MAX_QUICK_REPLY)] = ""


class ClientSettings(SettingsStruct, frozen=True, kw_only=True):
    """Settings of the OpenAI-compatible endpoint.

    `system_messages` places a client's system messages before Talekeeper's own, or sends them
    instead of those. With `chronicle`, chats that clients begin keep a chronicle. With `auto`, the
    model name `auto` recognises the character from the client's system messages. If it recognises
    none, `unknown_characters` answers with the plain default model, or creates a character.
    `unknown_parameters` ignores the members of a request that Talekeeper does not know, or passes
    them on to the provider of a plain model.
    """

    system_messages: Literal["instead", "before"] = "instead"
    chronicle: bool = False
    auto: bool = True
    unknown_characters: Literal["plain", "create"] = "plain"
    unknown_parameters: Literal["ignore", "pass_on"] = "ignore"


class PageSettings(SettingsStruct, frozen=True, kw_only=True):
    """Settings of the page. An absent field has the page's default.

    Without `enter_sends`, the Enter key sends where there is a keyboard. Without `language`, the
    browser's languages decide. `titles` is the source of automatic titles; by default the first
    line, or a model if the account has one for background tasks. `monthly_limit` is in US dollars;
    the page warns before it is reached, and no request is refused. `dismissed` are names of hints
    that the user has closed.
    """

    enter_sends: bool | None = None
    language: (
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)]
        | None
    ) = None
    theme: Literal["auto", "light", "dark", "sepia", "night"] | None = None
    font: Literal["serif", "sans", "dyslexia"] | None = None
    font_percent: Annotated[int, msgspec.Meta(ge=75, le=200)] | None = None
    width: Literal["narrow", "medium", "wide"] | None = None
    style: Literal["book", "bubbles"] | None = None
    titles: Literal["model", "first_line", "off"] | None = None
    monthly_limit: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    dismissed: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=40)], ...], msgspec.Meta(max_length=40)
    ] = ()


class UserSettings(SettingsStruct, frozen=True, kw_only=True):
    """The default settings of a user's chats. `sampling` is for the `model` of the same settings.

    `keep_other_speakers` keeps lines that a reply says for the user or another character. By
    default a reply ends before a line that begins with one of their names and a colon.
    `expand_macros` expands macros in the user's lines before they are stored. It is on by default.
    `quick_replies` are texts for a click.
    """

    model: ModelId | None = None
    task_models: AccountTaskModels = msgspec.field(default_factory=AccountTaskModels)
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    lore: LoreOverrides = msgspec.field(default_factory=LoreOverrides)
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    enrichment: EnrichmentSettings = msgspec.field(default_factory=EnrichmentSettings)
    client: ClientSettings = msgspec.field(default_factory=ClientSettings)
    page: PageSettings = msgspec.field(default_factory=PageSettings)
    persona_id: UUID | None = None
    preset_id: UUID | None = None
    reasoning_sent: ReasoningSent | None = None
    keep_other_speakers: bool | None = None
    expand_macros: bool | None = None
    system_prompt: LongText | None = None
    post_history_instructions: LongText | None = None
    quick_replies: Annotated[
        tuple[QuickReply, ...], msgspec.Meta(max_length=MAX_QUICK_REPLIES)
    ] = ()


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
    """Raise `ValidationError` if budgets are too large or leave nothing for a prompt.

    Args:
        chain: Budgets in order of precedence. The first ones are being set.
        settings: The server's default budgets and maxima.
        before: The previous value of the first budgets. Unchanged values are not compared with the
            maxima, because an operator may have lowered these since.
    """
    for name, maximum in _get_maxima(settings).items():
        wanted: int | None = getattr(chain[0], name)
        if wanted is not None and wanted > maximum and wanted != getattr(before, name):
            raise ValidationError(
                f"budgets.{name}: {wanted:,} tokens are more than this server's maximum of "
                f"{maximum:,} (TALEKEEPER_MAX_BUDGET_{name.upper()})."
            )
    window = find_first_set(chain, "total", settings.budget_total)
    reserve = find_first_set(chain, "reply_reserve", settings.budget_reply_reserve)
    if reserve >= window:
        raise ValidationError(
            f"budgets: a total of {window:,} tokens with a reply_reserve of {reserve:,} leaves "
            "nothing for the prompt."
        )


def compute_budgets(chain: Sequence[BudgetSettings], settings: Settings) -> Budget:
    """Return the budgets in effect, limited by the server's maxima.

    `chain` is in order of precedence. If a lowered maximum of the total leaves too little space,
    the reply reserve takes half of it.
    """
    wanted = {
        name: find_first_set(chain, name, getattr(settings, f"budget_{name}"))
        for name in BudgetSettings.__struct_fields__
    }
    allowed = {name: min(wanted[name], most) for name, most in _get_maxima(settings).items()}
    if "total" in allowed and allowed["total"] < wanted["total"]:
        reserve = allowed.get("reply_reserve", wanted["reply_reserve"])
        allowed["reply_reserve"] = min(reserve, allowed["total"] // 2)
    return Budget(**{**wanted, **allowed})


def _get_maxima(settings: Settings) -> dict[str, int]:
    maxima = {
        "total": settings.max_budget_total,
        "reply_reserve": settings.max_budget_reply_reserve,
    }
    return {name: maximum for name, maximum in maxima.items() if maximum}


def find_first_set(chain: Sequence[msgspec.Struct], name: str, default: ValueT) -> ValueT:
    for settings in chain:
        value: ValueT | None = getattr(settings, name)
        if value is not None:
            return value
    return default
