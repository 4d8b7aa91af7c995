"""End turns that no process runs: after a crash, or because the player stops a waiting turn."""

from __future__ import annotations

import random
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.store import has_changes
from backend.chats import tree
from backend.chats.events import notify_path_moved
from backend.chats.models import Chat, Message
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.outbox import EnrichmentOutbox
from backend.memory.indexing.outbox import IndexOutbox
from backend.turns import repository
from backend.turns.models import Turn, TurnState
from backend.vault.sealing import OVERHEAD, Sealer


class TurnRecovery:
    """Ends turns by their rows. Texts and changes that a choice has stored are kept."""

    def __init__(
        self,
        database: Database,
        index: IndexOutbox,
        enrichment: EnrichmentOutbox,
        participants: Participants,
    ) -> None:
        self._database = database
        self._index = index
        self._enrichment = enrichment
        self._participants = participants

    async def stop(self, identity: Identity, turn_id: UUID) -> UUID:
        """End a waiting turn, and ask the process of a running turn to stop it.

        Of turns that follow each other by themselves, the open one is stopped, and none follows. If
        the next one has not begun, it is deleted.

        Returns the id of the stopped turn. Raises `TurnNotFoundError`.
        """
        async with self._database.write() as session:
            found = await repository.get_turn(session, turn_id, owner_id=identity.user_id)
            chat = await session.get(Chat, found.chat_id, with_for_update=True)
            if found.chain_id is not None:
                turn = await repository.find_open_turn_of_chain(session, found.chain_id)
            else:
                turn = await session.get(
                    Turn, turn_id, with_for_update=True, populate_existing=True
                )
            if chat is None or turn is None:
                return turn_id
            if turn.is_reserved:
                await session.delete(turn)
            elif turn.state == "running":
                turn.stop_requested = True
            elif turn.state == "waiting":
                await self._end(session, chat, turn, "stopped", identity.sealer)
            return turn.id

    async def recover(self) -> int:
        """Mark running turns with an expired lease as interrupted. Their text is kept.

        No reply follows them by itself. A turn that has not begun is deleted.

        Returns the number of turns.
        """
        async with self._database.read() as session:
            abandoned = list(await repository.find_abandoned_turns(session, at=now()))
        # Other processes have the same list, so that each of them begins elsewhere.
        random.shuffle(abandoned)
        recovered = [await self.recover_turn(each) for each in abandoned]
        return sum(recovered)

    async def recover_turn(self, found: Turn) -> bool:
        """Recover one turn. False if its process has returned, or another one has ended it."""
        async with self._database.write() as session:
            chat = await session.get(Chat, found.chat_id, with_for_update=True)
            turn = await session.get(Turn, found.id, with_for_update=True)
            if chat is None or turn is None or turn.lease_until != found.lease_until:
                return False
            if turn.is_reserved:
                await session.delete(turn)
            else:
                await self._end(session, chat, turn, "interrupted")
            return True

    async def _end(
        self,
        session: AsyncSession,
        chat: Chat,
        turn: Turn,
        state: TurnState,
        sealer: Sealer | None = None,
    ) -> None:
        """End a turn. Its row and its chat are locked. Without `sealer` no key is available."""
        turn.state = state
        turn.finished_at = now()
        turn.lease_owner = turn.lease_until = turn.waits_for = turn.sealed_play = None
        message = await session.get(Message, turn.reply_id) if turn.reply_id else None
        if message is not None and message.status == "streaming":
            has_text = len(message.sealed_content) > OVERHEAD
            if has_text or turn.kind == "continue" or await has_changes(session, message.id):
                message.status = "interrupted"
                tree.set_unfollowed_hidden(chat, message, hidden=message.hidden or not has_text)
            else:
                turn.reply_id = None
                await remove_empty_reply(session, self._participants, sealer, chat, message)
        said = [each for each in (turn.user_message_id, turn.reply_id) if each is not None]
        await self._index.record_unkeyed(
            session, turn.user_id, kind="message", container_id=chat.id, source_ids=said
        )
        if turn.kind == "continue" and message is not None:
            await tree.refresh_sums_below(session, message)
        if turn.kind == "continue" and turn.reply_id is not None:
            await self._enrichment.study_again(session, turn.reply_id)
        await self._enrichment.study_later(session, chat)


async def remove_empty_reply(
    session: AsyncSession,
    participants: Participants,
    sealer: Sealer | None,
    chat: Chat,
    message: Message,
) -> None:
    """Delete a reply without text."""
    position = message.position
    await tree.remove_message(session, chat, message)
    await notify_path_moved(participants, session, sealer, chat, position)
