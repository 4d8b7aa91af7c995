"""An account's regex scripts, the tester, and what scripts make of messages that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from backend.accounts.identity import Identity
from backend.accounts.models import USER_SCRIPTS, User
from backend.accounts.service import AccountService
from backend.characters.repository import find_names, find_persona
from backend.chats import repository as chats
from backend.chats.models import Chat
from backend.chats.schemas import MessageView
from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.errors import ForbiddenError, ValidationError
from backend.generation.model import Role
from backend.regex.script_format import RegexScript
from backend.regex.scripts import ScriptEngine, Scripts
from backend.scripting.reading import (
    KINDS,
    account_scripts,
    allowed_scripts,
    has_scripts,
    names_alone,
    open_scripts,
    ready_scripts,
)
from backend.scripting.schemas import ScriptStep, ScriptTest, ScriptTested
from backend.wire import check_revision

MAX_BYTES = 500_000
"""Bytes of JSON of an account's scripts."""


class ScriptService:
    """What a user does with regex scripts, and what they do with messages.

    Where no persona is chosen, `{{user}}` is the account's name.
    """

    def __init__(
        self,
        database: Database,
        engine: ScriptEngine,
        pool: CpuPool,
        *,
        accounts: AccountService,
    ) -> None:
        self._database = database
        self._engine = engine
        self._pool = pool
        self._accounts = accounts

    async def read(self, identity: Identity) -> tuple[list[RegexScript], int]:
        """The account's scripts, and their revision: 0 where none were ever set."""
        async with self._database.read() as session:
            row = await _row(session, identity.user_id)
        return open_scripts(identity.sealer, row.sealed_scripts), row.scripts_revision

    async def replace(
        self, identity: Identity, scripts: Sequence[RegexScript], *, if_match: str | None
    ) -> int:
        """Set the account's scripts; their new revision.

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
        """Try scripts on a text."""
        context = names_alone(user=self._accounts.name_of(identity), char=test.character)
        scripts = ready_scripts(self._engine, identity.user_id, test.scripts, context)
        return await self._pool.run(identity.user_id, partial(_tested, scripts, test))

    async def edited(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        role: Role,
        character_id: UUID | None,
        text: str,
    ) -> str:
        """A message's new text, as scripts that run on edits leave it."""
        async with self._database.read() as session:
            if not await has_scripts(session, identity.user_id):
                return text
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
            found = await self._scripts(session, identity, chat, [character_id])
        if role not in KINDS or not found[character_id].has("stored"):
            return text
        run = partial(found[character_id].run, text, KINDS[role], "stored", is_edit=True)
        return await self._pool.run(identity.user_id, run)

    async def show(self, identity: Identity, views: Sequence[MessageView]) -> None:
        """Put beside messages of one chat what scripts show in the place of their texts."""
        if not views:
            return
        speakers = {view.character_id for view in views}
        async with self._database.read() as session:
            if not await has_scripts(session, identity.user_id):
                return
            chat = await chats.get_chat(session, views[0].chat_id, owner_id=identity.user_id)
            found = await self._scripts(session, identity, chat, list(speakers))
            if not any(scripts.has("shown") for scripts in found.values()):
                return
            last = await chats.leaf_position(session, chat)
        await self._pool.run(identity.user_id, partial(_show, found, views, last))

    async def _scripts(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        speakers: Sequence[UUID | None],
    ) -> dict[UUID | None, Scripts]:
        """The scripts for each speaker's messages: a character's own, or the first one's."""
        members = (await chats.character_ids(session, [chat.id])).get(chat.id, [])
        first = members[0] if members else None
        wanted = {speaker: speaker or first for speaker in speakers}
        ids = [each for each in set(wanted.values()) if each is not None]
        own = await account_scripts(session, identity)
        of_cards = await allowed_scripts(session, identity, ids)
        sealer, owner_id = identity.sealer, identity.user_id
        names = await find_names(session, ids, owner_id=owner_id, sealer=sealer)
        persona_id = chat.persona_id or identity.settings.persona_id
        persona = persona_id and await find_persona(
            session, persona_id, owner_id=owner_id, sealer=sealer
        )
        user = persona.name if persona else self._accounts.name_of(identity)
        return {
            speaker: ready_scripts(
                self._engine,
                owner_id,
                [*own, *(of_cards.get(character_id, ()) if character_id else ())],
                names_alone(user=user, char=names.get(character_id, "") if character_id else ""),
            )
            for speaker, character_id in wanted.items()
        }


async def _row(session: AsyncSession, user_id: UUID, *, lock: bool = False) -> User:
    query = select(User).where(User.id == user_id).options(undefer(User.sealed_scripts))
    row = await session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise ForbiddenError
    return row


def _tested(scripts: Scripts, test: ScriptTest) -> ScriptTested:
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
        if view.role not in KINDS or view.status == "streaming":
            continue
        depth = max(0, last - view.position) if last is not None else None
        text = scripts.run(view.text, KINDS[view.role], "shown", depth=depth)
        view.shown = text if text != view.text else None
        if view.thinking:
            thinking = scripts.run(view.thinking, "reasoning", "shown", depth=depth)
            view.shown_thinking = thinking if thinking != view.thinking else None
