"""Import the worlds, characters and presets of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec

from backend.characters.cards.codec import Object, get_object, omit
from backend.characters.cards.reader import read_card
from backend.characters.errors import NoCardError
from backend.characters.models import Summary
from backend.characters.repository import load_summaries
from backend.errors import AppError
from backend.lorebooks.formats.fields import ReadBook
from backend.lorebooks.formats.reader import read_card_book, read_file
from backend.transfer.contracts import ImportContext, StepResult
from backend.transfer.folders.layout import CHARACTERS, WORLDS, get_name, get_stem
from backend.transfer.folders.run import FolderRun, digest_bytes, read_whole, skip
from backend.transfer.imported import digest_parts, make_recorder
from backend.vault.sealing import Sealer

_CHANGING_MEMBERS: Final = frozenset(
    {"chat", "create_date", "fav", "avatar", "json_data", "shallow", "talkativeness"}
    | {"date_added", "date_last_chat", "chat_size", "data_size"}
)
"""Members that SillyTavern changes in a card while it is played."""


async def import_world(run: FolderRun, path: str, _context: ImportContext) -> StepResult:
    """Import a file of `worlds`. The book is named after the file, as in SillyTavern."""
    identity, name = run.identity, get_stem(path)
    data = await run.read(path)
    digest = await run.work(partial(digest_bytes, run.sealer, data))
    known = await run.find_unless_copy(digest)
    if known is not None:
        run.note("lorebook", path, known)
        return StepResult(outcome="already_there", kind="lorebook", item_id=known)
    lorebooks = run.services.lorebooks
    made = await lorebooks.import_file(
        identity, data, name, record=make_recorder(run.sealer, "lorebook", digest)
    )
    book_id, warnings = made.lorebook.id, list(made.warnings)
    run.note("lorebook", path, book_id)
    if made.lorebook.name != name:
        try:
            await lorebooks.patch(identity, book_id, {"name": name}, if_match=None)
        except AppError as error:
            warnings.append(f"It is named {made.lorebook.name!r}: {error.detail}")
    if made.skipped:
        warnings.append(f"Entries that were left out: {made.skipped:,}.")
    return StepResult(outcome="imported", kind="lorebook", item_id=book_id, warnings=warnings)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The parts of a card file that decide about its import.

    `world` is the name of the book that it is linked to, and `embedded` the texts of the entries in
    its own book.
    """

    file_digest: bytes
    card_digest: bytes
    world: str
    embedded: frozenset[str]


def examine_card(sealer: Sealer, data: bytes) -> CardFacts:
    """Read a card. CPU-bound. Raises `CardError`."""
    found = read_card(data)
    world: Any = found.card.extensions.get("world")
    named = world if isinstance(world, str) else ""
    book = found.card.character_book
    embedded: frozenset[str] = frozenset()
    if named and book is not None:
        embedded = _list_contents(read_card_book(book, given_name=found.card.name))
    return CardFacts(
        digest_bytes(sealer, data),
        _digest_card(sealer, found.raw, is_linked=bool(named)),
        named,
        embedded,
    )


def _digest_card(sealer: Sealer, raw: Object, *, is_linked: bool) -> bytes:
    """Return a digest that stays the same while SillyTavern only keeps track of play.

    SillyTavern copies the linked book into the card whenever it writes the file.
    """
    lasting = omit(raw, _CHANGING_MEMBERS)
    if isinstance(raw.get("data"), dict):
        fields = omit(get_object(raw, "data"), {"character_book"} if is_linked else ())
        extensions = omit(get_object(fields, "extensions"), _CHANGING_MEMBERS)
        lasting["data"] = {**fields, "extensions": extensions}
    return digest_parts(sealer, "card", [msgspec.json.encode(lasting, order="sorted")])


async def import_card(run: FolderRun, path: str, _context: ImportContext) -> StepResult:
    """Import a file of `characters`, and link the world that the card names."""
    data = await run.read(path)
    try:
        facts = await run.work(partial(examine_card, run.sealer, data))
    except NoCardError as error:
        return skip(error.detail)
    digests = facts.file_digest, facts.card_digest
    character_id = await run.find_unless_copy(*digests)
    if is_new := character_id is None:
        made = await run.services.characters.import_file(
            run.identity, data, record=make_recorder(run.sealer, "character", *digests)
        )
        character_id, warnings = made.character.id, list(made.warnings)
    else:
        warnings = []
    run.note("character", path, character_id)
    if facts.world:
        warnings += await _link_world(run, character_id, facts)
    return StepResult(
        outcome="imported" if is_new else "already_there",
        kind="character",
        item_id=character_id,
        warnings=warnings,
    )


async def _link_world(run: FolderRun, character_id: UUID, facts: CardFacts) -> list[str]:
    """Link the world that a card names. Return warnings.

    SillyTavern uses the world, and keeps a copy in the card. The copy would double each entry.
    """
    path = run.folder.find(f"{WORLDS}/{facts.world}.json")
    book_id = await run.find_item("lorebook", path)
    if path is None or book_id is None:
        return [f"Its lorebook {facts.world!r} was not imported, so it is not linked."]
    services, identity = run.services, run.identity
    try:
        await services.links.link(identity, "character", character_id, book_id)
        if not facts.embedded:
            return []
        view = await services.characters.get(identity, character_id)
        if view.lorebook_id is None:
            return []
        world = await run.work(partial(_read_contents, await run.read(path), facts.world))
        if not facts.embedded <= world:
            return [f"The card also contains a lorebook beside {facts.world!r}. Both are used."]
        patch = {"character_book": None}
        await services.characters.patch(identity, character_id, patch, if_match=None)
    except AppError as error:
        return [f"Its lorebook {facts.world!r}: {error.detail}"]
    return []


def _read_contents(data: bytes, name: str) -> frozenset[str]:
    return _list_contents(read_file(data, given_name=name))


def _list_contents(book: ReadBook) -> frozenset[str]:
    return frozenset(entry.content for entry, _ in book.entries)


async def find_character(run: FolderRun, file: str) -> UUID | None:
    """Return the character of a card file, such as `Alice.png`, or None."""
    path = run.folder.find(f"{CHARACTERS}/{file}")
    if path is None:
        return None
    if ("character", path) not in run.context.found and ("character", path) not in run.missing:
        # The card may be there under the digest of an earlier version of its file.
        try:
            facts = await run.work(partial(_examine_path, run, path))
        except AppError:
            facts = None
        found = await run.find(facts.file_digest, facts.card_digest) if facts else None
        if found is None:
            run.missing.add(("character", path))
        else:
            run.note("character", path, found)
    return run.context.found.get(("character", path))


def _examine_path(run: FolderRun, path: str) -> CardFacts:
    return examine_card(run.sealer, read_whole(run.context.tree, path))


async def load_cast(run: FolderRun) -> dict[str, tuple[UUID, Summary]]:
    """Return the characters of the folder by card file, in the order of the files."""
    found: dict[str, UUID] = {}
    for path in run.folder.list_files(CHARACTERS):
        character_id = await find_character(run, get_name(path))
        if character_id is not None:
            found[get_name(path)] = character_id
    async with run.services.database.read() as session:
        summaries = await load_summaries(
            session, list(found.values()), owner_id=run.identity.user_id, sealer=run.sealer
        )
    return {
        file: (character_id, summaries[character_id])
        for file, character_id in found.items()
        if character_id in summaries
    }


async def import_preset(run: FolderRun, path: str, _context: ImportContext) -> StepResult:
    """Import a chat-completion preset."""
    data = await run.read(path)
    digest = await run.work(partial(digest_bytes, run.sealer, data))
    known = await run.find_unless_copy(digest)
    if known is not None:
        return StepResult(outcome="already_there", kind="preset", item_id=known)
    made = await run.services.presets.import_file(
        run.identity, data, get_stem(path), record=make_recorder(run.sealer, "preset", digest)
    )
    return StepResult(
        outcome="imported", kind="preset", item_id=made.preset.id, warnings=made.warnings
    )
