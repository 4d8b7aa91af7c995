"""Macros in the user's line, expanded before the line is stored."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.models import User
from backend.accounts.service import AccountService
from backend.accounts.settings import first_set
from backend.characters import repository as characters
from backend.characters.cards.model import Card
from backend.chats import repository as chats
from backend.chats.service import read_settings
from backend.context.macros import (
    MacroBudget,
    MacroContext,
    Variables,
    expand,
    may_hold_macros,
)
from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.turns.macro_fields import macros_for, macros_of, read_variables, seed_of
from backend.turns.prompt_context import LoadedChat, PromptWindow
from backend.turns.speaking import NARRATOR

PLACE = "line"
"""The place of the line's draws, and its name in errors."""


def expand_line(
    loaded: LoadedChat, window: PromptWindow, budget: MacroBudget | None = None
) -> LoadedChat:
    """Expand the macros of the line that is to be stored. CPU-bound.

    `budget` limits the work; without one the limits of a request apply. Raises `MacroLimitError`.
    """
    line = loaded.line
    if line is None or not loaded.expands_macros or not may_hold_macros(line):
        return loaded
    expansion = expand(
        line,
        macros_for(loaded, window),
        loaded.variables,
        place=PLACE,
        budget=budget or MacroBudget(),
    )
    return replace(
        loaded,
        line=expansion.text,
        said=expansion.text,
        typed=line if expansion.text != line else None,
        variables=expansion.variables,
    )


class LineMacroService:
    """Expands macros in lines that the user edits.

    Variables are read, not written. Macros that quote messages or describe the model are empty,
    because no prompt is built.
    """

    def __init__(self, database: Database, pool: CpuPool, *, accounts: AccountService) -> None:
        self._database = database
        self._pool = pool
        self._accounts = accounts

    async def expand(
        self, identity: Identity, chat_id: UUID, *, parent_id: UUID | None, text: str
    ) -> str:
        """Return the text with its macros expanded; the same text if a setting forbids it.

        The line draws what a line after `parent_id` draws in a turn. Raises `ChatNotFoundError`,
        `MacroLimitError`.
        """
        if not may_hold_macros(text):
            return text
        async with self._database.read() as session:
            found = await self._load(session, identity, chat_id, parent_id)
        if found is None:
            return text
        context, variables = found
        run = partial(expand, text, context, variables, place=PLACE, budget=MacroBudget())
        return (await self._pool.run(identity.user_id, run)).text

    async def _load(
        self, session: AsyncSession, identity: Identity, chat_id: UUID, parent_id: UUID | None
    ) -> tuple[MacroContext, Variables] | None:
        """Read the values of the macros. None if the chat's lines are not expanded."""
        owner_id, sealer = identity.user_id, identity.sealer
        chat = await chats.get_chat(session, chat_id, owner_id=owner_id)
        settings = read_settings(sealer, chat)
        if not first_set((settings, identity.settings), "expand_macros", default=True):
            return None
        member_ids = (await chats.character_ids(session, [chat.id])).get(chat.id, [])
        names = await characters.find_names(session, member_ids, owner_id=owner_id, sealer=sealer)
        first_id = next(iter(names), None)
        card = (
            await characters.get_card(session, first_id, owner_id=owner_id, sealer=sealer)
            if first_id
            else Card(name=NARRATOR)
        )
        persona_id = chat.persona_id or identity.settings.persona_id
        persona = persona_id and await characters.find_persona(
            session, persona_id, owner_id=owner_id, sealer=sealer
        )
        user = persona.name if persona else self._accounts.name_of(identity)
        context = macros_of(
            card,
            char=names[first_id] if first_id else card.name,
            user=user,
            persona=persona.description if persona else "",
            chat_seed=seed_of(chat.id),
            message_seed=seed_of(chat.id, parent_id),
        )
        everyone = list(names.values())
        sealed_globals = await session.scalar(
            select(User.sealed_variables).where(User.id == owner_id)
        )
        return (
            replace(
                context,
                group=", ".join(everyone) if len(everyone) > 1 else "",
                not_char=", ".join((*everyone[1:], user)),
            ),
            read_variables(sealer, chat, sealed_globals),
        )
