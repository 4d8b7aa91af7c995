"""Regex scripts in a turn: on the user's line, on what the model gets, on the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.generation.model import Role
from backend.lorebooks.activation.outcome import ActiveEntry, ScanOutcome
from backend.regex.scripts import ScriptEngine, Scripts
from backend.regex.service import KINDS, load_active_scripts, prepare_scripts
from backend.turns.prompt.context import LoadedChat, PromptWindow
from backend.turns.prompt.macros import expand_line, make_card_macros


async def scripts_of(
    session: AsyncSession, identity: Identity, engine: ScriptEngine, loaded: LoadedChat
) -> Scripts | None:
    """The scripts of a turn: the account's, then those of the character that speaks."""
    speaker = loaded.speaker
    own = [speaker.id] if speaker.id and "regex_scripts" in speaker.card.extensions else []
    if not own and not loaded.has_scripts:
        return None
    scripts = await load_active_scripts(session, identity, own)
    if not scripts:
        return None
    macros = make_card_macros(
        speaker.card,
        char=speaker.name,
        user=loaded.user_name,
        persona=loaded.persona,
        chat_seed=0,
        message_seed=0,
    )
    return prepare_scripts(engine, identity.user_id, scripts, macros)


def rewritten(loaded: LoadedChat, window: PromptWindow) -> LoadedChat:
    """Apply regex scripts, and the macros of the line that is to be stored. CPU-bound.

    The line is stored as it is then; that one, the line that is answered again, and the last
    messages are as the model gets them. As in SillyTavern, scripts for stored text run before
    macros are expanded. Raises `MacroLimitError`.
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
    last = len(loaded.recent) - (said is None)
    recent = [
        replace(each, text=scripts.run(each.text, KINDS[each.role], "prompt", depth=last - at))
        if each.role in KINDS
        else each
        for at, each in enumerate(loaded.recent)
    ]
    return replace(loaded, said=said, recent=recent)


def sent_texts(
    scripts: Scripts | None, roles: Sequence[Role], texts: Sequence[str], *, has_line: bool
) -> list[str]:
    """Messages of the history, oldest first, as the model gets them. CPU-bound."""
    if scripts is None or not scripts.has("prompt"):
        return list(texts)
    last = len(texts) - (not has_line)
    return [
        scripts.run(text, KINDS[role], "prompt", depth=last - at) if role in KINDS else text
        for at, (role, text) in enumerate(zip(roles, texts, strict=True))
    ]


def sent_lore(
    scripts: Scripts | None, outcome: ScanOutcome, count: Callable[[str], int]
) -> ScanOutcome:
    """Activated lore as the model gets it. CPU-bound."""
    if scripts is None or not scripts.has("prompt"):
        return outcome

    def sent(entry: ActiveEntry) -> ActiveEntry:
        depth = entry.depth if entry.position == "at_depth" else None
        content = scripts.run(entry.content, "lore", "prompt", depth=depth)
        if content == entry.content:
            return entry
        return replace(entry, content=content, tokens=count(content))

    return replace(outcome, activated=[sent(entry) for entry in outcome.activated])
