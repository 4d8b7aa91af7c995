"""JSON files of an archive, for data that the formats of other programs have no place for.

All ids are those of the account that made the archive.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec

from backend.accounts.profile.settings import UserSettings
from backend.campaigns.ledger.items import Kind
from backend.campaigns.models import ProposalReason, ProposalState
from backend.characters.schemas import PersonaFields
from backend.chats.models import Notice
from backend.chats.schemas import ChatSettings
from backend.chats.transfer import LogOrigin, Pixels
from backend.chronicles.events import ChronicleFields
from backend.generation.registry import KindName
from backend.llm.models import ProviderFields
from backend.llm.providers.schemas import Slug
from backend.lorebooks.activation.timed import TimedEffect
from backend.lorebooks.models import ChatLink
from backend.transfer.archives.manifest import ArchivePath
from backend.transfer.errors import TransferFileError

RecordT = TypeVar("RecordT")

ID_PATTERN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

MAX_ROWS = 250_000
"""Maximum length of each list in a file."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Text = Annotated[str, msgspec.Meta(max_length=64_000_000)]
Audience = Annotated[str, msgspec.Meta(max_length=4_000)]
Place = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Ids = Annotated[list[UUID], msgspec.Meta(max_length=MAX_ROWS)]
Variables = Annotated[dict[str, Text], msgspec.Meta(max_length=10_000)]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An object of an archive. Unknown members of later versions are ignored."""


class PersonaRecord(Record, kw_only=True, tag_field="format", tag="talekeeper-persona"):
    """`personas/NAME.json`. Its picture has the same name."""

    persona: PersonaFields


class ProviderRecord(Record, kw_only=True, tag_field="format", tag="talekeeper-provider"):
    """`providers/NAME.json`: a provider without its key and its extra headers."""

    slug: Slug
    kind: KindName
    preset: str | None = None
    fields: ProviderFields


class LoreEffect(Record, kw_only=True):
    """An effect on an entry, which is named by its book and its place there, from 0."""

    book_id: UUID
    entry: Place
    effect: TimedEffect


class LoreStateRecord(Record, kw_only=True):
    """The timed effects of lorebooks after a message."""

    message_id: UUID
    effects: Annotated[list[LoreEffect], msgspec.Meta(max_length=MAX_ROWS)] = []


class SummaryRecord(Record, kw_only=True):
    """A rolling summary of the path from position `begins_at` down to a message."""

    message_id: UUID
    text: Annotated[str, msgspec.Meta(max_length=20_000)]
    begins_at: Annotated[int, msgspec.Meta(ge=0)] = 0
    audience: Audience = "public"
    is_edited: bool = False
    created_at: Moment
    updated_at: Moment


class MessageDetail(Record, kw_only=True):
    """Notices of a reply, and the campaign's part of its prompt."""

    message_id: UUID
    injected_context: Text | None = None
    notices: Annotated[list[Notice], msgspec.Meta(max_length=20)] = []


class FileRecord(Record, kw_only=True):
    """A file of a message. `file` is its path in the archive, or null if the content is missing.

    `name` and `path` are those of the imported chat. Uploaded pictures have a size in pixels.
    """

    message_id: UUID
    place: Place
    file: ArchivePath | None = None
    media_type: Annotated[str, msgspec.Meta(max_length=200)] = ""
    name: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    path: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    width: Pixels | None = None
    height: Pixels | None = None


class ChatBookRecord(Record, kw_only=True):
    lorebook_id: UUID
    state: ChatLink


class CompactionMark(Record, kw_only=True):
    """A message that a compaction of the campaign has read."""

    message_id: UUID
    version: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class ChatState(Record, kw_only=True, tag_field="format", tag="talekeeper-chat-state"):
    """The parts of a chat that are not in its messages.

    `settings` include its chronicle and the owner's consent. `imported` are the files that it was
    imported from. `recorded` are the messages up to which the agent has read.
    """

    chat_id: UUID
    settings: ChatSettings = msgspec.field(default_factory=ChatSettings)
    chronicle_since: Moment | None = None
    variables: Variables = {}
    lorebooks: Annotated[list[ChatBookRecord], msgspec.Meta(max_length=10_000)] = []
    lore_states: Annotated[list[LoreStateRecord], msgspec.Meta(max_length=MAX_ROWS)] = []
    summaries: Annotated[list[SummaryRecord], msgspec.Meta(max_length=MAX_ROWS)] = []
    details: Annotated[list[MessageDetail], msgspec.Meta(max_length=MAX_ROWS)] = []
    files: Annotated[list[FileRecord], msgspec.Meta(max_length=MAX_ROWS)] = []
    imported: Annotated[list[LogOrigin], msgspec.Meta(max_length=10_000)] = []
    recorded: Ids = []
    compacted: Annotated[list[CompactionMark], msgspec.Meta(max_length=MAX_ROWS)] = []

    @property
    def is_default(self) -> bool:
        """True if the chat has nothing that its messages do not have."""
        return self == ChatState(chat_id=self.chat_id)


class MessagePlace(Record, kw_only=True):
    chat_id: UUID
    message_id: UUID


class ProposalRecord(Record, kw_only=True):
    """A proposed change of a campaign. `content` is as stored, with ids of items."""

    item_id: UUID
    kind: Kind
    reason: ProposalReason
    state: ProposalState
    audience: Audience = "public"
    content: dict[str, Any]
    sources: Annotated[list[MessagePlace], msgspec.Meta(max_length=1_000)] = []
    created_at: Moment


class CampaignState(Record, kw_only=True, tag_field="format", tag="talekeeper-campaign-state"):
    """The parts of a campaign that are not in its file: its chats' states, and its proposals."""

    campaign_id: UUID
    chronicle_id: UUID | None = None
    chronicle: ChronicleFields | None = None
    chats: Annotated[list[ChatState], msgspec.Meta(max_length=10_000)] = []
    proposals: Annotated[list[ProposalRecord], msgspec.Meta(max_length=MAX_ROWS)] = []


class CharacterLinks(Record, kw_only=True):
    """A character's script permission, preset and mark, and the lorebook of its card."""

    id: UUID
    scripts_allowed: bool | None = None
    is_favourite: bool = False
    preset_id: UUID | None = None
    book_id: UUID | None = None


class EntryOriginRecord(Record, kw_only=True):
    """The origin of an entry, which is named by its place in the book, from 0.

    `is_agents` is true if the agent wrote it and the user has not changed it since.
    """

    entry: Place
    is_agents: bool = False
    chat_id: UUID | None = None
    message_id: UUID | None = None


class LorebookLinksRecord(Record, kw_only=True):
    """The places that a lorebook applies to, except for chats, which list their own."""

    id: UUID
    is_global: bool = False
    chronicle_id: UUID | None = None
    character_ids: Ids = []
    persona_ids: Ids = []
    origins: Annotated[list[EntryOriginRecord], msgspec.Meta(max_length=MAX_ROWS)] = []


class LinkList(Record, kw_only=True, tag_field="format", tag="talekeeper-links"):
    """`links.json`."""

    characters: Annotated[list[CharacterLinks], msgspec.Meta(max_length=MAX_ROWS)] = []
    lorebooks: Annotated[list[LorebookLinksRecord], msgspec.Meta(max_length=MAX_ROWS)] = []


class SettingsRecord(Record, kw_only=True, tag_field="format", tag="talekeeper-settings"):
    """`settings.json`: the settings and the global variables of the account."""

    settings: UserSettings = msgspec.field(default_factory=UserSettings)
    variables: Variables = {}


def write_record(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2)


def read_record(data: bytes, kind: type[RecordT]) -> RecordT:
    """Read an untrusted file. CPU-bound. Raises `TransferFileError`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransferFileError(f"The file is damaged: {error}.") from error
