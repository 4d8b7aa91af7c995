"""The memories that a character brings from its other chats, if it keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.listeners import find_memory_witness
from backend.chats.members import Group
from backend.chats.models import CHAT_TITLE, Chat
from backend.chronicles.memories import find_remembered
from backend.core.audience import GM, Viewpoint, Witness
from backend.memory.indexing.sources import MemoryItem
from backend.vault.sealing import Sealer


@dataclass(frozen=True, slots=True)
class RememberedChats:
    """Chronicles of other chats of the speaker, of which it knows a part.

    Attributes:
        witness: The speaker, with the entities that it plays in all of its chats.
        titles: The titles of the chats of each chronicle, the latest chat first.
    """

    witness: Witness
    titles: Mapping[UUID, Mapping[UUID, str]]

    @property
    def chronicle_ids(self) -> Sequence[UUID]:
        return list(self.titles)

    @property
    def limits(self) -> Mapping[UUID, Viewpoint]:
        """The viewpoint of each chronicle, also if the narrator's knowledge is used otherwise."""
        return dict.fromkeys(self.titles, self.witness)

    def find_title(self, item: MemoryItem) -> str:
        """Return the title of the chat that a memory is from. Empty if it is from this chat."""
        chats = self.titles.get(item.container_id)
        if not chats:
            return ""
        usual = next(iter(chats.values()))
        return chats.get(item.chat_id, usual) if item.chat_id else usual


async def load_remembered(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    group: Group,
    speaker_id: UUID,
    name: str,
    viewpoint: Viewpoint,
) -> RememberedChats | None:
    """Return the other chats of a character that keeps its memories, if it speaks for itself.

    The only character of a chat does, although its prompt has the narrator's knowledge of the chat.
    """
    is_alone = viewpoint == GM and not group.is_group
    is_own = isinstance(viewpoint, Witness) and viewpoint.character_id == speaker_id
    if not (is_alone or is_own):
        return None
    found = await find_remembered(session, chat, speaker_id)
    if not found:
        return None
    witness = await find_memory_witness(session, sealer, chat, speaker_id, name)
    titles = {
        chronicle_id: {
            chat_id: sealer.open(CHAT_TITLE, chat_id, sealed) for chat_id, sealed in chats.items()
        }
        for chronicle_id, chats in found.items()
    }
    return RememberedChats(witness, titles)
