"""Regex scripts of accounts and cards: storage, tester, and display of messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, exists, select, true
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from backend.accounts.auth.identity import Identity
from backend.accounts.models import USER_SCRIPTS, User
from backend.accounts.service import AccountService
from backend.characters.models import Character, open_card
from backend.characters.repository import find_names, find_persona
from backend.chats import repository as chats
from backend.chats.models import Chat
from backend.chats.schemas import MessageView
from backend.context.macros import MacroBudget, MacroContext, MacroLimitError, Variables, expand
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.errors import ForbiddenError, ValidationError
from backend.generation.model import Role
from backend.http.schemas import check_revision
from backend.regex.scripts import (
    RegexScript,
    ScriptEngine,
    Scripts,
    ScriptStep,
    ScriptTest,
    ScriptTested,
    TextKind,
    read_scripts,
)
from backend.vault.sealing import Sealer

KINDS: Mapping[str, TextKind] = {"user": "user", "assistant": "reply"}
"""Kind of a message's text by its role. Scripts ignore other roles."""

MAX_MACROS = 1_000
MAX_CHARACTERS = 200_000
"""Macro limits for all scripts of one request."""

MAX_BYTES = 500_000
"""Bytes of JSON of an account's scripts."""

_OF_ACCOUNT = select(User.sealed_scripts).where(User.id == bindparam("owner_id"))
_ALLOWED = select(Character.id, Character.sealed_card).where(Character.scripts_allowed == true())
_ANY = select(
    exists().where(User.id == bindparam("owner_id"), User.sealed_scripts.is_not(None))
    | exists().where(
        Character.user_id == bindparam("owner_id"), Character.scripts_allowed == true()
    )
)


def _open_scripts(sealer: Sealer, sealed: bytes | None) -> list[RegexScript]:
    if sealed is None:
        return []
    data = sealer.open_bytes(USER_SCRIPTS, sealer.user_id, sealed)
    return msgspec.json.decode(data, type=list[RegexScript])


async def _has_scripts(session: AsyncSession, owner_id: UUID) -> bool:
    """True if the account has scripts or a character with enabled scripts."""
    return bool(await session.scalar(_ANY, {"owner_id": owner_id}))


async def _account_scripts(session: AsyncSession, identity: Identity) -> list[RegexScript]:
    sealed = await session.scalar(_OF_ACCOUNT, {"owner_id": identity.user_id})
    return _open_scripts(identity.sealer, sealed)


async def _load_allowed_scripts(
    session: AsyncSession, identity: Identity, character_ids: Collection[UUID]
) -> dict[UUID, list[RegexScript]]:
    if not character_ids:
        return {}
    rows = await session.execute(
        _ALLOWED.where(Character.id.in_(character_ids), Character.user_id == identity.user_id)
    )
    cards = {row.id: open_card(identity.sealer, row.id, row.sealed_card) for row in rows}
    return {key: read_scripts(card.extensions) for key, card in cards.items()}


async def load_active_scripts(
    session: AsyncSession, identity: Identity, character_ids: Sequence[UUID]
) -> list[RegexScript]:
    """Return the account's scripts, then the enabled scripts of the characters."""
    if not await _has_scripts(session, identity.user_id):
        return []
    of_cards = await _load_allowed_scripts(session, identity, character_ids)
    found = await _account_scripts(session, identity)
    for character_id in character_ids:
        found += of_cards.get(character_id, ())
    return found


def prepare_scripts(
    engine: ScriptEngine, owner_id: UUID, scripts: Sequence[RegexScript], context: MacroContext
) -> Scripts:
    """Prepare a user's scripts. Their macros can read variables, but not write them."""
    budget = MacroBudget(characters=MAX_CHARACTERS, macros=MAX_MACROS)

    def expand_macros(text: str) -> str:
        try:
            return expand(text, context, Variables(), place="regex", budget=budget).text
        except MacroLimitError:
            return text

    return Scripts(scripts, expand_macros, engine, owner_id)


def _build_context(*, user: str, char: str) -> MacroContext:
    """Return a macro context without a prompt: only names and time are set."""
    return MacroContext(
        user=user,
        char=char,
        now=datetime.now().astimezone(),
        chat_seed=0,
        message_seed=0,
        model="",
        max_prompt=0,
    )


FindPlayerName = Callable[[AsyncSession, Sealer, UUID | None], Awaitable[str | None]]
"""Returns the name of the character that the user plays in a campaign."""


class ScriptService:
    """Manages a user's regex scripts and applies them to messages.

    Without a persona, `{{user}}` is the name that `find_player_name` returns for the chat's
    campaign, or else the account's name.
    """

    def __init__(
        self,
        database: Database,
        engine: ScriptEngine,
        pool: CpuPool,
        *,
        accounts: AccountService,
        find_player_name: FindPlayerName,
    ) -> None:
        self._database = database
        self._engine = engine
        self._pool = pool
        self._accounts = accounts
        self._find_player_name = find_player_name

    async def read(self, identity: Identity) -> tuple[list[RegexScript], int]:
        """Return the account's scripts and their revision, which is 0 if none were ever set."""
        async with self._database.read() as session:
            row = await _row(session, identity.user_id)
        return _open_scripts(identity.sealer, row.sealed_scripts), row.scripts_revision

    async def replace(
        self, identity: Identity, scripts: Sequence[RegexScript], *, if_match: str | None
    ) -> int:
        """Replace the account's scripts. Return the new revision.

        Raises `PreconditionFailedError`, `ValidationError`.
        """
        data = msgspec.json.encode(scripts)
        if len(data) > MAX_BYTES:
            raise ValidationError(
                f"The scripts have {len(data):,} bytes of JSON; {MAX_BYTES:,} are allowed."
            )
        async with self._database.write() as session:
            row = await _row(session, identity.user_id, lock=True)
            check_revision(if_match, row.scripts_revision)
            sealed = identity.sealer.seal_bytes(USER_SCRIPTS, identity.user_id, data)
            row.sealed_scripts = sealed if scripts else None
            row.scripts_revision += 1
            return row.scripts_revision

    async def test(self, identity: Identity, test: ScriptTest) -> ScriptTested:
        """Run scripts on a test text."""
        context = _build_context(user=self._accounts.name_of(identity), char=test.character)
        scripts = prepare_scripts(self._engine, identity.user_id, test.scripts, context)
        return await self._pool.run(identity.user_id, partial(_run_test, scripts, test))

    async def run_stored(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        role: Role,
        character_id: UUID | None,
        text: str,
        is_edit: bool,
    ) -> str:
        """Run scripts on a text that is being stored. See `MessageScripts`."""
        async with self._database.read() as session:
            if not await _has_scripts(session, identity.user_id):
                return text
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
            found = await self._scripts(session, identity, chat, [character_id])
        if role not in KINDS or not found[character_id].has("stored"):
            return text
        run = partial(found[character_id].run, text, KINDS[role], "stored", is_edit=is_edit)
        return await self._pool.run(identity.user_id, run)

    async def show(self, identity: Identity, views: Sequence[MessageView]) -> None:
        """Add the text that scripts display instead of the stored one to messages of one chat."""
        if not views:
            return
        speakers = {view.character_id for view in views}
        async with self._database.read() as session:
            if not await _has_scripts(session, identity.user_id):
                return
            chat = await chats.get_chat(session, views[0].chat_id, owner_id=identity.user_id)
            found = await self._scripts(session, identity, chat, list(speakers))
            if not any(scripts.has("shown") for scripts in found.values()):
                return
            last = await chats.find_leaf_position(session, chat)
        await self._pool.run(identity.user_id, partial(_show, found, views, last))

    async def _scripts(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        speakers: Sequence[UUID | None],
    ) -> dict[UUID | None, Scripts]:
        """Return the scripts for each speaker: those of the character, or of the first one."""
        members = (await chats.list_character_ids(session, [chat.id])).get(chat.id, [])
        first = members[0] if members else None
        wanted = {speaker: speaker or first for speaker in speakers}
        ids = [each for each in set(wanted.values()) if each is not None]
        own = await _account_scripts(session, identity)
        of_cards = await _load_allowed_scripts(session, identity, ids)
        sealer, owner_id = identity.sealer, identity.user_id
        names = await find_names(session, ids, owner_id=owner_id, sealer=sealer)
        persona_id = chat.persona_id or identity.settings.persona_id
        persona = persona_id and await find_persona(
            session, persona_id, owner_id=owner_id, sealer=sealer
        )
        if persona:
            user = persona.name
        else:
            played = await self._find_player_name(session, sealer, chat.campaign_id)
            user = played or self._accounts.name_of(identity)
        return {
            speaker: prepare_scripts(
                self._engine,
                owner_id,
                [*own, *(of_cards.get(character_id, ()) if character_id else ())],
                _build_context(user=user, char=names.get(character_id, "") if character_id else ""),
            )
            for speaker, character_id in wanted.items()
        }


async def _row(session: AsyncSession, user_id: UUID, *, lock: bool = False) -> User:
    query = select(User).where(User.id == user_id).options(undefer(User.sealed_scripts))
    row = await session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise ForbiddenError
    return row


def _run_test(scripts: Scripts, test: ScriptTest) -> ScriptTested:
    text = test.text
    steps: list[ScriptStep] = []
    run = scripts.steps(text, test.place, test.form, depth=test.depth, is_edit=test.is_edit)
    for text, step in run:
        steps.append(ScriptStep(name=step.name, state=step.state, matches=step.matches, text=text))
    return ScriptTested(text=text, steps=steps)


def _show(
    found: dict[UUID | None, Scripts], views: Sequence[MessageView], last: int | None
) -> None:
    for view in views:
        scripts = found[view.character_id]
        if view.role not in KINDS or view.status == "streaming" or view.removed:
            continue
        depth = max(0, last - view.position) if last is not None else None
        text = scripts.run(view.text, KINDS[view.role], "shown", depth=depth)
        view.shown = text if text != view.text else None
        if view.thinking:
            thinking = scripts.run(view.thinking, "reasoning", "shown", depth=depth)
            view.shown_thinking = thinking if thinking != view.thinking else None
