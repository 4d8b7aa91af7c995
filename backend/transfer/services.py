"""The services that store the items of imports."""

from __future__ import annotations

from dataclasses import dataclass

from backend.accounts.profile.service import ProfileService
from backend.backgrounds.service import BackgroundService
from backend.campaigns.files.transfer import CampaignTransfer
from backend.characters.avatars import AvatarService
from backend.characters.personas import PersonaService
from backend.characters.service import CharacterService
from backend.chats.member_service import MemberService
from backend.chats.service import ChatService
from backend.chronicles.transfer import ChronicleTransfer
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.llm.providers.service import ProviderService
from backend.lorebooks.links import LorebookLinkService
from backend.lorebooks.service import LorebookService
from backend.presets.service import PresetService
from backend.regex.service import ScriptService
from backend.transfer.archives.chat_rows import ChatTreeImporter
from backend.transfer.archives.settings_rows import AccountWriter
from backend.transfer.contracts import StoreChat
from backend.turns.api.openings import OpeningService


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportServices:
    """Services of planners. `store_chat` stores chats of other programs, `chat_trees` our own."""

    database: Database
    pool: CpuPool
    accounts: AccountWriter
    avatars: AvatarService
    backgrounds: BackgroundService
    campaigns: CampaignTransfer
    characters: CharacterService
    chat_trees: ChatTreeImporter
    chats: ChatService
    chronicles: ChronicleTransfer
    links: LorebookLinkService
    members: MemberService
    lorebooks: LorebookService
    opening: OpeningService
    personas: PersonaService
    presets: PresetService
    profile: ProfileService
    providers: ProviderService
    scripts: ScriptService
    store_chat: StoreChat
