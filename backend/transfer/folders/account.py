"""Import the settings of the account, tags, regex scripts, quick replies and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from backend.accounts.auth.identity import open_user_settings
from backend.accounts.profile.settings import (
    MAX_QUICK_REPLIES,
    MAX_QUICK_REPLY,
    QuickReply,
    UserSettings,
)
from backend.accounts.repository import get_user
from backend.characters.cards.codec import Object
from backend.characters.cards.model import Card
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.chats.schemas import AuthorsNote
from backend.errors import AppError, PreconditionFailedError
from backend.http.schemas import make_etag
from backend.llm.providers.schemas import NewProvider
from backend.regex.scripts import MAX_SCRIPTS, RegexScript, read_scripts
from backend.transfer.contracts import ImportContext, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.layout import SECRETS_FILE, WORLDS, get_stem
from backend.transfer.folders.library import load_cast
from backend.transfer.folders.personas import find_persona
from backend.transfer.folders.run import FolderRun, digest_bytes, skip
from backend.transfer.imported import digest_parts, make_recorder

MAX_ATTEMPTS: Final = 5
"""Attempts to change settings that someone else changes at the same time."""

MAX_CARD_TAGS: Final = 200
MAX_NAMED: Final = 5
"""Names that a sentence lists."""

_PROVIDERS: Final[Mapping[str, str]] = {
    "api_key_openai": "openai",
    "api_key_claude": "anthropic",
    "api_key_makersuite": "google-ai-studio",
    "api_key_openrouter": "openrouter",
    "api_key_deepseek": "deepseek",
    "api_key_mistralai": "mistral",
}
"""The preset of a provider by the name of its key in `secrets.json`."""


async def import_settings(run: FolderRun, path: str, _context: ImportContext) -> StepResult:
    """Apply the settings that have a counterpart. Values that the account has set are kept.

    Each part is applied again without effect, so a second run changes nothing.
    """
    if path in run.contents.faults:
        raise run.contents.faults[path]
    cast_by_file = await load_cast(run)
    warnings = list(run.settings.left_out)
    counts = {
        "regex scripts": await _add_scripts(run, warnings),
        "defaults": await _set_defaults(run),
        "active lorebooks": await _activate_books(run, warnings),
    }
    counts |= await _change_characters(run, cast_by_file, warnings)
    done = [f"{name} ({count:,})" for name, count in counts.items() if count]
    return StepResult(
        outcome="imported" if done else "already_there",
        kind="settings",
        detail=f"Applied: {', '.join(done)}." if done else "",
        warnings=warnings,
    )


async def _add_scripts(run: FolderRun, warnings: list[str]) -> int:
    """Append the account's scripts that it does not have yet. Return their number."""
    listed = run.settings.scripts
    wanted = [
        script
        for each in listed[:MAX_SCRIPTS]
        for script in read_scripts({"regex_scripts": [each]})
    ]
    if len(wanted) < len(listed):
        warnings.append(
            "Regex scripts that cannot be read, or are over the limit of "
            f"{MAX_SCRIPTS}, were left out: {len(listed) - len(wanted):,}."
        )
    for _ in range(MAX_ATTEMPTS):
        present, revision = await run.services.scripts.read(run.identity)
        known = {_identify_script(script) for script in present}
        added = [
            script
            for key, script in {_identify_script(each): each for each in wanted}.items()
            if key not in known
        ]
        room = MAX_SCRIPTS - len(present)
        if len(added) > room:
            warnings.append(
                f"An account can have {MAX_SCRIPTS} regex scripts. Left out: {len(added) - room:,}."
            )
            added = added[:room]
        if not added:
            return 0
        try:
            await run.services.scripts.replace(
                run.identity, [*present, *added], if_match=make_etag(revision)
            )
        except PreconditionFailedError:
            continue
        except AppError as error:
            warnings.append(f"The regex scripts were left out: {error.detail}")
            return 0
        return len(added)
    warnings.append("The regex scripts were left out, because they were being changed.")
    return 0


def _identify_script(script: RegexScript) -> bytes:
    """Return a key that is equal for scripts that differ only by their id."""
    return msgspec.json.encode(msgspec.structs.replace(script, id=""))


async def _set_defaults(run: FolderRun) -> int:
    """Set the default persona and World Info's defaults, as far as the account has set none."""
    settings, _ = await _load_settings(run)
    patch: dict[str, Any] = {}
    default = run.settings.default_persona
    for persona in run.settings.personas:
        if persona.file == default and settings.persona_id is None:
            persona_id = await find_persona(run, persona)
            if persona_id is not None:
                patch["persona_id"] = str(persona_id)
    lore: dict[str, Any] = msgspec.to_builtins(run.settings.lore)
    present: dict[str, Any] = msgspec.to_builtins(settings.lore)
    if new := {name: value for name, value in lore.items() if name not in present}:
        patch["lore"] = new
    if patch:
        await run.services.profile.patch_settings(run.identity, patch, if_match=None)
    return len(patch.get("lore", ())) + ("persona_id" in patch)


async def _load_settings(run: FolderRun) -> tuple[UserSettings, int]:
    """Return the account's present settings and their revision."""
    async with run.services.database.read() as session:
        user = await get_user(session, run.identity.user_id)
    return open_user_settings(run.sealer, user.sealed_settings), user.settings_revision


async def _activate_books(run: FolderRun, warnings: list[str]) -> int:
    count = 0
    for name in run.settings.global_books:
        book_id = await _find_book(run, name, warnings)
        if book_id is None:
            continue
        book = await run.services.lorebooks.get(run.identity, book_id)
        if not book.is_global:
            patch = {"is_global": True}
            await run.services.lorebooks.patch(run.identity, book_id, patch, if_match=None)
            count += 1
    return count


async def _find_book(run: FolderRun, name: str, warnings: list[str]) -> UUID | None:
    book_id = await run.find_item("lorebook", run.folder.find(f"{WORLDS}/{name}.json"))
    if book_id is None:
        warnings.append(f"The lorebook {name!r} was not imported, so it is not linked.")
    return book_id


async def _change_characters(
    run: FolderRun, cast_by_file: Mapping[str, tuple[UUID, Any]], warnings: list[str]
) -> dict[str, int]:
    """Apply tags, more books, notes and the permission of scripts. Return counts by name."""
    counts = {"characters with tags": 0, "linked lorebooks": 0, "author's notes": 0, "scripts": 0}
    scripted = frozenset(run.settings.scripted_cards)
    for file, (character_id, _) in cast_by_file.items():
        books = run.settings.character_books.get(get_stem(file), ())
        note = run.settings.notes.get(get_stem(file))
        tags = run.settings.tags.get(file, ())
        counts["linked lorebooks"] += await _link_books(run, character_id, books, warnings)
        if not (tags or note or file in scripted):
            continue
        view = await run.services.characters.get(run.identity, character_id)
        patch = _tag_card(view, tags) | _note_card(view, note)
        try:
            if patch:
                await run.services.characters.patch(
                    run.identity, character_id, patch, if_match=None
                )
            if file in scripted and view.scripts_allowed is None:
                await run.services.characters.allow_scripts(
                    run.identity, character_id, allowed=True
                )
                counts["scripts"] += 1
        except AppError as error:
            warnings.append(f"{file}: {error.detail}")
            continue
        counts["characters with tags"] += "tags" in patch
        counts["author's notes"] += "extensions" in patch
    return {
        "characters with scripts that may run" if name == "scripts" else name: count
        for name, count in counts.items()
    }


async def _link_books(
    run: FolderRun, character_id: UUID, names: Sequence[str], warnings: list[str]
) -> int:
    if not names:
        return 0
    page = await run.services.links.list_linked(run.identity, "character", character_id)
    linked, count = {item.id for item in page.items}, 0
    for name in names:
        book_id = await _find_book(run, name, warnings)
        if book_id is not None and book_id not in linked:
            await run.services.links.link(run.identity, "character", character_id, book_id)
            count += 1
    return count


def _tag_card(card: Card, tags: Sequence[str]) -> Object:
    """Return a patch that adds the tags of a card, or an empty one."""
    known = {tag.casefold() for tag in card.tags}
    new = [tag for tag in dict.fromkeys(tags) if tag.casefold() not in known]
    room = max(0, MAX_CARD_TAGS - len(card.tags))
    return {"tags": [*card.tags, *new[:room]]} if new[:room] else {}


def _note_card(card: Card, note: AuthorsNote | None) -> Object:
    """Return a patch that adds the author's note of a card that has none."""
    own: Any = card.extensions.get("talekeeper")
    kept = cast("Object", own) if isinstance(own, dict) else {}
    if note is None or "authors_note" in kept:
        return {}
    added = {"authors_note": msgspec.to_builtins(note)}
    return {"extensions": {"talekeeper": {**kept, **added}}}


async def import_quick_replies(run: FolderRun, path: str, _context: ImportContext) -> StepResult:
    """Append a set of quick replies to the texts in the account's settings."""
    data = await run.read(path)
    digest = await run.work(partial(digest_bytes, run.sealer, data))
    if await run.find_unless_copy(digest) is not None:
        return StepResult(outcome="already_there", kind="settings")
    listed, warnings = await run.work(partial(read_quick_replies, data, name=get_stem(path)))
    for _ in range(MAX_ATTEMPTS):
        settings, revision = await _load_settings(run)
        present = settings.quick_replies
        added = [each for each in dict.fromkeys(listed) if each not in present]
        room = MAX_QUICK_REPLIES - len(present)
        if len(added) > room:
            raise TransferFileError(
                f"An account can have {MAX_QUICK_REPLIES} quick replies. It has room for "
                f"{room:,}, and the set has {len(added):,} new ones. Delete some first."
            )
        patch = {"quick_replies": msgspec.to_builtins([*present, *added])}
        try:
            await run.services.profile.patch_settings(
                run.identity, patch, if_match=make_etag(revision)
            )
        except PreconditionFailedError:
            continue
        await run.record("settings", run.identity.user_id, digest)
        return StepResult(
            outcome="imported",
            kind="settings",
            detail=f"Texts added to the account's quick replies: {len(added):,}.",
            warnings=warnings,
        )
    raise TransferFileError("The account's settings were being changed. Import the folder again.")


def read_quick_replies(data: bytes, *, name: str) -> tuple[list[QuickReply], list[str]]:
    """Return the texts of a set, and warnings. CPU-bound. Raises `TransferFileError`."""
    try:
        parsed: object = parse_json(data)
    except CardError as error:
        raise TransferFileError(f"The set cannot be read: {error.detail}") from error
    raw = cast("Object", parsed) if isinstance(parsed, dict) else {}
    listed: object = raw.get("qrList", raw.get("quickReplySlots"))
    if not isinstance(listed, list):
        raise TransferFileError("This is not a set of quick replies: it has no `qrList`.")
    named: Any = raw.get("name")
    title = (named if isinstance(named, str) and named.strip() else name)[:100]
    found: list[QuickReply] = []
    left_out: list[str] = []
    for each in cast("list[object]", listed):
        slot = cast("Object", each) if isinstance(each, dict) else {}
        label, text = slot.get("label"), slot.get("message", slot.get("mes"))
        if not isinstance(text, str) or not text.strip():
            continue
        shown = label[:200] if isinstance(label, str) else ""
        if len(text) > MAX_QUICK_REPLY:
            left_out.append(shown or text[:40])
        else:
            found.append(QuickReply(set=title, label=shown, text=text))
    warnings = ["Quick replies are kept as texts. Their scripts do not run."] if found else []
    if left_out:
        warnings.append(
            f"Left out, because they have more than {MAX_QUICK_REPLY:,} characters: "
            f"{', '.join(left_out[:MAX_NAMED])}."
        )
    return found, warnings


async def import_secrets(run: FolderRun, path: str, context: ImportContext) -> StepResult:
    """Add a provider for each key that the request names. The other keys are not stored."""
    secrets = await run.work(partial(read_secrets, await run.read(path)))
    wanted = [name for name in secrets if name in context.options.secrets]
    others = [name for name in secrets if name not in context.options.secrets]
    if not secrets:
        return skip("It contains no keys of providers.")
    if not wanted:
        return skip(
            f"Keys are imported only if you name them. {SECRETS_FILE} contains: "
            f"{', '.join(others)}."
        )
    made: UUID | None = None
    outcomes: list[str] = []
    is_new = False
    for name in wanted:
        preset = _PROVIDERS.get(name)
        if preset is None:
            outcomes.append(f"{name}: add this provider by hand under settings")
            continue
        digest = digest_parts(run.sealer, "secret", [name.encode(), secrets[name].encode()])
        known = await run.find_unless_copy(digest)
        if known is not None:
            made = made or known
            outcomes.append(f"{name}: already there")
            continue
        try:
            provider = await run.services.providers.create(
                run.identity,
                NewProvider(preset=preset, api_key=secrets[name]),
                record=make_recorder(run.sealer, "provider", digest),
            )
        except AppError as error:
            outcomes.append(f"{name}: {error.detail.rstrip('.')}")
            continue
        made, is_new = made or provider.id, True
        outcomes.append(f"{name}: added")
    if others:
        outcomes.append(f"not asked for: {', '.join(others)}")
    sentence = f"{'; '.join(outcomes)}."
    if made is None:
        raise TransferFileError(sentence)
    return StepResult(
        outcome="imported" if is_new else "already_there",
        kind="provider",
        item_id=made,
        detail=sentence,
    )


def read_secrets(data: bytes) -> dict[str, str]:
    """Return the keys of providers by name. CPU-bound. Raises `TransferFileError`.

    Newer versions have several keys for a name, of which one is active.
    """
    try:
        parsed: object = parse_json(data)
    except CardError as error:
        raise TransferFileError("The keys cannot be read: it is not valid JSON.") from error
    raw = cast("Object", parsed) if isinstance(parsed, dict) else {}
    found: dict[str, str] = {}
    for name, value in raw.items():
        if not name.startswith("api_key_"):
            continue
        key = value if isinstance(value, str) else _find_active(value)
        if key.strip():
            found[name] = key.strip()
    return found


def _find_active(value: object) -> str:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    keys = [cast("Object", each) for each in listed if isinstance(each, dict)]
    keys.sort(key=lambda each: each.get("active") is not True)
    values = [each.get("value") for each in keys]
    return next((each for each in values if isinstance(each, str)), "")
