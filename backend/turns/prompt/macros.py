"""Macros and regex scripts of a turn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.models import USER_VARIABLES, User
from backend.accounts.profile.settings import find_first_set
from backend.accounts.service import AccountService
from backend.characters import repository as characters
from backend.characters.cards.model import Card
from backend.chats import repository as chats
from backend.chats.members import load_group
from backend.chats.models import CHAT_VARIABLES, Chat
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.context.macros import (
    MacroBudget,
    MacroContext,
    Variables,
    expand,
    may_hold_macros,
)
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.generation.model import Role
from backend.lorebooks.activation.outcome import ActiveEntry, ScanOutcome
from backend.regex.scripts import ScriptEngine, Scripts
from backend.regex.service import KINDS, load_active_scripts, prepare_scripts
from backend.turns.prompt.cast import NARRATOR, CastMember, list_cast
from backend.turns.prompt.context import (
    LoadedChat,
    PromptWindow,
)
from backend.vault.sealing import Sealer

MAX_VARIABLE_BYTES: Final = 200_000
"""Limit for the variables of a chat as JSON. The same limit applies to a user's variables."""

MACRO_CHARACTERS = 40
"""Expanding a macro takes as long as counting so many characters."""

LINE_PLACE = "line"
"""The name of the line's field in random draws and in errors."""


def make_card_macros(
    card: Card, *, char: str, user: str, persona: str, chat_seed: int, message_seed: int
) -> MacroContext:
    """Return the macro values of a card, without the texts of a conversation.

    The time is the server's, in its own time zone.
    """
    return MacroContext(
        user=user,
        char=char,
        now=datetime.now().astimezone(),
        chat_seed=chat_seed,
        message_seed=message_seed,
        model="",
        max_prompt=0,
        persona=persona,
        description=card.description,
        personality=card.personality,
        scenario=card.scenario,
        mes_examples=card.mes_example,
        char_prompt=card.system_prompt,
        char_instruction=card.post_history_instructions,
        char_depth_prompt=depth.prompt if (depth := card.depth_prompt) else "",
        creator_notes=card.creator_notes,
        greetings=(card.first_mes, *card.alternate_greetings),
        char_version=card.character_version,
    )


def with_group(
    context: MacroContext, members: Sequence[CastMember], speaker_id: UUID | None
) -> MacroContext:
    """Return macro values with the names of a group. As in SillyTavern, muted ones may be left out.

    `speaker_id` is None if the values must not depend on the speaker.
    """
    if len(members) <= 1:
        return context
    heard = [each for each in members if each.presence == "present"]
    others = [each.name for each in heard if each.id != speaker_id] if speaker_id else []
    return replace(
        context,
        group=_join_names(members),
        group_not_muted=_join_names(heard),
        not_char=", ".join((*others, context.user)),
    )


def make_joint_macros(context: MacroContext, loaded: LoadedChat, scenario: str) -> MacroContext:
    """Return the values for texts that all speakers of a group share.

    `{{char}}` is the names of all. Nothing comes from the card of the speaker. `scenario` is the
    one that they share.
    """
    joint = replace(
        context,
        char=_join_names(loaded.cast.members),
        description="",
        personality="",
        scenario=scenario,
        mes_examples="",
        char_prompt="",
        char_instruction="",
        char_depth_prompt="",
        creator_notes="",
        greetings=(),
        char_version="",
        authors_note="" if loaded.note.reason == "card" else context.authors_note,
    )
    return with_group(joint, loaded.cast.members, None)


def _join_names(members: Iterable[CastMember]) -> str:
    return ", ".join(each.name for each in members)


def replace_scenario(card: Card, settings: ChatSettings) -> Card:
    """Return a card as a chat with its own scenario uses it."""
    if not settings.scenario:
        return card
    return msgspec.structs.replace(card, scenario=settings.scenario)


def make_macros(loaded: LoadedChat, window: PromptWindow) -> MacroContext:
    leaf = loaded.target.leaf
    context = make_card_macros(
        loaded.cast.speaker.card,
        char=loaded.cast.speaker.name,
        user=loaded.cast.user_name,
        persona=loaded.cast.persona,
        chat_seed=make_seed(loaded.chat.id),
        message_seed=make_seed(loaded.chat.id, leaf.id if leaf else None),
    )
    said = [line.created_at for line in loaded.recent if line.role == "user"]
    return replace(
        with_group(context, loaded.cast.members, loaded.cast.speaker.id),
        model=window.spec.id,
        max_prompt=window.to_model_tokens(window.budget.prompt),
        max_response=window.limits.reply_reserve,
        last_message_id=str(loaded.recent[-1].position) if loaded.recent else "",
        authors_note=loaded.note.fields.text,
        last_message=_find_last(loaded, None),
        last_user_message=_find_last(loaded, "user"),
        last_char_message=_find_last(loaded, "assistant"),
        idle=context.now - said[-1] if said else timedelta(0),
    )


def _find_last(loaded: LoadedChat, role: Role | None) -> str:
    texts = [line.text for line in loaded.recent if role is None or line.role == role]
    return texts[-1] if texts else ""


def estimate_expansion(texts: Iterable[str]) -> int:
    """Return the size of texts with macros for `CpuPool.run`."""
    return sum(len(text) + MACRO_CHARACTERS * text.count("{{") for text in texts)


def make_seed(*ids: UUID | None) -> int:
    joined = b"".join(each.bytes if each else b"-" for each in ids)
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


def read_variables(sealer: Sealer, chat: Chat, sealed_globals: bytes | None) -> Variables:
    return Variables(
        local=read_chat_variables(sealer, chat),
        global_=read_global_variables(sealer, sealed_globals),
    )


def read_chat_variables(sealer: Sealer, chat: Chat) -> dict[str, str]:
    sealed = chat.sealed_variables
    return _decode_variables(sealer.open_bytes(CHAT_VARIABLES, chat.id, sealed) if sealed else None)


def read_global_variables(sealer: Sealer, sealed: bytes | None) -> dict[str, str]:
    """Return the variables of the sealer's user. `sealed` is the column of the user's row."""
    return _decode_variables(
        sealer.open_bytes(USER_VARIABLES, sealer.user_id, sealed) if sealed else None
    )


def _decode_variables(data: bytes | None) -> dict[str, str]:
    return msgspec.json.decode(data, type=dict[str, str]) if data else {}


def limit_variables(before: Variables, after: Variables) -> tuple[Variables, list[str]]:
    """Return the variables after a prompt, and notes. A scope that is too large is not changed."""
    notes: list[str] = []
    local = _limit_scope(before.local, after.local, "the chat's", notes)
    global_ = _limit_scope(before.global_, after.global_, "the user's", notes)
    return (Variables(local, global_) if notes else after), notes


def _limit_scope(
    before: Mapping[str, str], after: Mapping[str, str], whose: str, notes: list[str]
) -> Mapping[str, str]:
    if after is before:
        return after
    size = len(msgspec.json.encode(dict(after)))
    if size <= MAX_VARIABLE_BYTES:
        return after
    notes.append(
        f"{whose} variables were not changed: they would have {size:,} bytes, "
        f"of {MAX_VARIABLE_BYTES:,} allowed"
    )
    return before


def expand_line(
    loaded: LoadedChat, window: PromptWindow, budget: MacroBudget | None = None
) -> LoadedChat:
    """Expand the macros of the line that is stored. CPU-bound.

    `budget` limits the work. By default, the limits of one request apply. Raises `MacroLimitError`.
    """
    line = loaded.line
    if line is None or not loaded.expands_macros or not may_hold_macros(line):
        return loaded
    expansion = expand(
        line,
        make_macros(loaded, window),
        loaded.variables,
        place=LINE_PLACE,
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

    Variables are read but not written. Macros that quote messages or describe the model are empty,
    because no prompt is built.
    """

    def __init__(self, database: Database, pool: CpuPool, *, accounts: AccountService) -> None:
        self._database = database
        self._pool = pool
        self._accounts = accounts

    async def expand(
        self, identity: Identity, chat_id: UUID, *, parent_id: UUID | None, text: str
    ) -> str:
        """Return the text with its macros expanded, unless a setting forbids it.

        Random draws are the same as for a turn's line after `parent_id`. Raises
        `ChatNotFoundError`, `MacroLimitError`.
        """
        if not may_hold_macros(text):
            return text
        async with self._database.read() as session:
            found = await self._load(session, identity, chat_id, parent_id)
        if found is None:
            return text
        context, variables = found
        run = partial(expand, text, context, variables, place=LINE_PLACE, budget=MacroBudget())
        return (await self._pool.run(identity.user_id, run)).text

    async def _load(
        self, session: AsyncSession, identity: Identity, chat_id: UUID, parent_id: UUID | None
    ) -> tuple[MacroContext, Variables] | None:
        """Load the values of the macros. None if macros are not expanded in this chat."""
        owner_id, sealer = identity.user_id, identity.sealer
        chat = await chats.get_chat(session, chat_id, owner_id=owner_id)
        settings = read_settings(sealer, chat)
        if not find_first_set((settings, identity.settings), "expand_macros", default=True):
            return None
        group = await load_group(session, chat.id)
        names = await characters.find_names(
            session, list(group.members), owner_id=owner_id, sealer=sealer
        )
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
        context = make_card_macros(
            replace_scenario(card, settings),
            char=names[first_id] if first_id else card.name,
            user=user,
            persona=persona.description if persona else "",
            chat_seed=make_seed(chat.id),
            message_seed=make_seed(chat.id, parent_id),
        )
        sealed_globals = await session.scalar(
            select(User.sealed_variables).where(User.id == owner_id)
        )
        context = with_group(context, list_cast(group, names), first_id)
        return context, read_variables(sealer, chat, sealed_globals)


async def load_scripts(
    session: AsyncSession, identity: Identity, engine: ScriptEngine, loaded: LoadedChat
) -> Scripts | None:
    """Load the regex scripts of a turn: the account's, then the speaker's."""
    speaker = loaded.cast.speaker
    own = [speaker.id] if speaker.id and "regex_scripts" in speaker.card.extensions else []
    if not own and not loaded.has_scripts:
        return None
    scripts = await load_active_scripts(session, identity, own)
    if not scripts:
        return None
    macros = make_card_macros(
        speaker.card,
        char=speaker.name,
        user=loaded.cast.user_name,
        persona=loaded.cast.persona,
        chat_seed=0,
        message_seed=0,
    )
    return prepare_scripts(engine, identity.user_id, scripts, macros)


def rewrite_line(loaded: LoadedChat, window: PromptWindow) -> LoadedChat:
    """Apply regex scripts and macros to the line that is stored. CPU-bound.

    Scripts for prompts then change the line, an old line that is answered again, and the last
    messages. As in SillyTavern, scripts for stored text run before macros are expanded. Raises
    `MacroLimitError`.
    """
    scripts = loaded.scripts
    if scripts is not None and loaded.line is not None:
        line = scripts.run(loaded.line, "user", "stored", depth=0)
        loaded = replace(loaded, line=line, said=line)
    loaded = expand_line(loaded, window)
    if scripts is None:
        return loaded
    said = loaded.said
    if said is not None:
        said = scripts.run(said, "user", "prompt", depth=0)
    roles: list[Role] = [each.role for each in loaded.recent]
    texts = [each.text for each in loaded.recent]
    texts = rewrite_history(scripts, roles, texts, has_line=said is not None)
    recent = [replace(each, text=text) for each, text in zip(loaded.recent, texts, strict=True)]
    return replace(loaded, said=said, recent=recent)


def rewrite_history(
    scripts: Scripts | None, roles: Sequence[Role], texts: Sequence[str], *, has_line: bool
) -> list[str]:
    """Apply regex scripts to the messages of the history, oldest first. CPU-bound."""
    if scripts is None or not scripts.has("prompt"):
        return list(texts)
    last = len(texts) - (not has_line)
    return [
        scripts.run(text, KINDS[role], "prompt", depth=last - at) if role in KINDS else text
        for at, (role, text) in enumerate(zip(roles, texts, strict=True))
    ]


def rewrite_lore(
    scripts: Scripts | None, outcome: ScanOutcome, count: Callable[[str], int]
) -> ScanOutcome:
    """Apply regex scripts to activated lore. CPU-bound."""
    if scripts is None or not scripts.has("prompt"):
        return outcome

    def sent(entry: ActiveEntry) -> ActiveEntry:
        depth = entry.depth if entry.position == "at_depth" else None
        content = scripts.run(entry.content, "lore", "prompt", depth=depth)
        if content == entry.content:
            return entry
        return replace(entry, content=content, tokens=count(content))

    return replace(outcome, activated=[sent(entry) for entry in outcome.activated])
