"""Which scripts run for a character, with what their macros stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, exists, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.models import USER_SCRIPTS, User
from backend.characters.models import Character, open_card
from backend.context.macros import (
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
    expand,
)
from backend.regex.script_format import RegexScript, TextKind, read_scripts
from backend.regex.scripts import ScriptEngine, Scripts
from backend.vault.sealing import Sealer

KINDS: Mapping[str, TextKind] = {"user": "user", "assistant": "reply"}
"""What scripts take a message for, by its role; others they leave alone."""

MAX_MACROS = 1_000
MAX_CHARACTERS = 200_000
"""What the macros of one request's scripts may take."""


def open_scripts(sealer: Sealer, sealed: bytes | None) -> list[RegexScript]:
    """The scripts of the sealer's account."""
    if sealed is None:
        return []
    data = sealer.open_bytes(USER_SCRIPTS, sealer.user_id, sealed)
    return msgspec.json.decode(data, type=list[RegexScript])


async def has_scripts(session: AsyncSession, owner_id: UUID) -> bool:
    """Whether an account has scripts, or a character whose scripts may run."""
    return bool(await session.scalar(_ANY, {"owner_id": owner_id}))


async def account_scripts(session: AsyncSession, identity: Identity) -> list[RegexScript]:
    """The account's scripts."""
    sealed = await session.scalar(_OF_ACCOUNT, {"owner_id": identity.user_id})
    return open_scripts(identity.sealer, sealed)


async def allowed_scripts(
    session: AsyncSession, identity: Identity, character_ids: Collection[UUID]
) -> dict[UUID, list[RegexScript]]:
    """The scripts of those of the characters whose scripts may run."""
    if not character_ids:
        return {}
    rows = await session.execute(
        _ALLOWED.where(Character.id.in_(character_ids), Character.user_id == identity.user_id)
    )
    cards = {row.id: open_card(identity.sealer, row.id, row.sealed_card) for row in rows}
    return {key: read_scripts(card.extensions) for key, card in cards.items()}


async def running_scripts(
    session: AsyncSession, identity: Identity, character_ids: Sequence[UUID]
) -> list[RegexScript]:
    """The account's scripts, then those of the characters, as far as they may run."""
    if not await has_scripts(session, identity.user_id):
        return []
    of_cards = await allowed_scripts(session, identity, character_ids)
    found = await account_scripts(session, identity)
    for character_id in character_ids:
        found += of_cards.get(character_id, ())
    return found


def ready_scripts(
    engine: ScriptEngine, owner_id: UUID, scripts: Sequence[RegexScript], context: MacroContext
) -> Scripts:
    """A user's scripts, ready to run. Macros in them read variables and write none."""
    budget = MacroBudget(characters=MAX_CHARACTERS, macros=MAX_MACROS)

    def expanded(text: str) -> str:
        try:
            return expand(text, context, Variables(), place="regex", budget=budget).text
        except MacroLimitError:
            return text

    return Scripts(scripts, expanded, engine, owner_id)


def names_alone(*, user: str, char: str) -> MacroContext:
    """What macros stand for where there is no prompt: the names, and the time."""
    return MacroContext(
        user=user,
        char=char,
        now=datetime.now().astimezone(),
        chat_seed=0,
        message_seed=0,
        model="",
        max_prompt=0,
    )


_OF_ACCOUNT = select(User.sealed_scripts).where(User.id == bindparam("owner_id"))
_ALLOWED = select(Character.id, Character.sealed_card).where(Character.scripts_allowed == true())
_ANY = select(
    exists().where(User.id == bindparam("owner_id"), User.sealed_scripts.is_not(None))
    | exists().where(
        Character.user_id == bindparam("owner_id"), Character.scripts_allowed == true()
    )
)
