"""Import the chats, groups and group chats of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, Final
from urllib.parse import unquote
from uuid import UUID

import msgspec

from backend.characters.models import Summary
from backend.chats.schemas import MemberPatch
from backend.transfer.contracts import ChatTarget, FileTree, FindFile, ImportContext, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.groups import (
    GroupFile,
    add_header,
    index_by_stem,
    read_start,
    sort_branches,
)
from backend.transfer.folders.layout import (
    GROUP_CHATS,
    WORLDS,
    UserFolder,
    clean_path,
    fold_name,
    get_name,
    get_stem,
)
from backend.transfer.folders.library import load_cast
from backend.transfer.folders.personas import load_personas
from backend.transfer.folders.run import FolderRun
from backend.transfer.formats.chat_file import ChatReading, find_characters
from backend.transfer.formats.sillytavern import SILLYTAVERN
from backend.transfer.imported import digest_parts

MAX_ATTACHMENT_BYTES: Final = 50 << 20
"""A larger file of a message is left out, as if it was missing."""

_ATTACHMENTS: Final = "user/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSource:
    """A chat file and its owner: a card file, or a group, which may be missing."""

    path: str
    main_path: str | None = None
    card_file: str = ""
    group: GroupFile | None = None


@dataclass(slots=True, kw_only=True)
class ChatImport:
    """Imports the chats of one folder. It is made after the characters and personas are there."""

    run: FolderRun
    cast: Mapping[str, tuple[UUID, Summary]]
    personas: Mapping[str, UUID]
    locks: Mapping[str, str]
    """Picture files of personas by the card file or group id that they are locked to."""

    speakers: Mapping[str, UUID]
    """All characters by card file and name. Of equal names, the first one counts."""

    find_file: FindFile

    @classmethod
    async def begin(cls, run: FolderRun) -> ChatImport:
        cast = await load_cast(run)
        by_name: dict[str, UUID] = {}
        for character_id, summary in cast.values():
            by_name.setdefault(summary.name, character_id)
        by_file = {file: character_id for file, (character_id, _) in cast.items()}
        locks: dict[str, str] = {}
        for persona in run.settings.personas:
            for owner in (*persona.character_files, *persona.group_ids):
                locks.setdefault(fold_name(owner), persona.file)
        return cls(
            run=run,
            cast={fold_name(file): each for file, each in cast.items()},
            personas=await load_personas(run),
            locks=locks,
            speakers={**by_name, **by_file},
            find_file=make_finder(run.context.tree, run.folder),
        )

    async def import_chat(self, source: ChatSource, context: ImportContext) -> StepResult:
        """Import a chat file. A branch joins the tree of its main chat."""
        run = self.run
        digest = await run.digest(source.path)
        known = await run.find_unless_copy(digest)
        if known is not None:
            run.note("chat", source.path, known)
            return StepResult(outcome="already_there", kind="chat", item_id=known)
        members, warnings = self._find_members(source)
        by_name = self._digest_name(source)
        joins = await run.find_item("chat", source.main_path) or await run.find_unless_copy(by_name)
        file = await run.work(partial(_open_chat, context.tree, source))
        try:
            reading = await run.work(partial(self._start_reading, file, source))
            lorebook = run.folder.find(f"{WORLDS}/{reading.head.lorebook}.json")
            lorebook_id = await run.find_item("lorebook", lorebook)
            if reading.head.lorebook and lorebook_id is None:
                warnings.append(
                    f"Its lorebook {reading.head.lorebook!r} was not imported, so it is not linked."
                )
            target = ChatTarget(
                file_name=get_name(source.path),
                digest=digest,
                members=list(members.values()),
                speakers=self._find_speakers(source, members),
                personas=self.personas,
                lorebook_id=lorebook_id,
                joins=joins,
                find_file=self.find_file,
            )
            result = await run.services.store_chat(
                run.identity, reading, target, report=context.report
            )
        finally:
            await run.work(file.close)
        if result.item_id is not None and result.outcome != "failed":
            run.note("chat", source.path, result.item_id)
            await run.record("chat", result.item_id, by_name)
        return StepResult(
            outcome=result.outcome,
            kind=result.kind,
            item_id=result.item_id,
            detail=result.detail,
            warnings=[*warnings, *result.warnings],
        )

    async def import_group(
        self, path: str, chats: Sequence[str], _context: ImportContext
    ) -> StepResult:
        """Report a group. Its chats get its members and name. Open a chat if it has none."""
        run = self.run
        group = run.contents.groups.get(path)
        if group is None:
            raise run.contents.faults[path]
        digest = await run.digest(path)
        known = await run.find_unless_copy(digest)
        members, warnings = self._find_members(ChatSource(path=path, group=group))
        if known is not None:
            return StepResult(outcome="already_there", warnings=warnings)
        if chats:
            await run.record("settings", run.identity.user_id, digest)
            return StepResult(
                outcome="imported",
                detail=f"Its chats ({len(chats):,}) have its members ({len(members):,}).",
                warnings=warnings,
            )
        opened = await run.services.chats.open(
            run.identity,
            title=group.name[:300],
            character_ids=list(members.values()),
            persona_id=None,
            greetings=(),
        )
        settings = group.settings.find_settings(self.speakers)
        await run.services.chats.patch_settings(
            run.identity, opened.id, {"group": msgspec.to_builtins(settings)}, if_match=None
        )
        for character_id in find_characters(members, group.settings.muted):
            await run.services.members.patch(
                run.identity, opened.id, character_id, MemberPatch(presence="muted")
            )
        await run.record("chat", opened.id, digest)
        return StepResult(
            outcome="imported",
            kind="chat",
            item_id=opened.id,
            detail="The group has no chats. A chat with its members was opened.",
            warnings=warnings,
        )

    def _start_reading(self, file: BinaryIO, source: ChatSource) -> ChatReading:
        """Read the head of a chat, and add the lock of its persona and the group's name."""
        reading = next(SILLYTAVERN.read(file, name=get_name(source.path)), None)
        if reading is None:
            raise TransferFileError("The file contains no chat.")
        owner = source.group.id if source.group else source.card_file
        if not reading.head.persona:
            reading.head.persona = self.locks.get(fold_name(owner), "")
        if source.group is not None:
            reading.head.title = source.group.name
            reading.head.group = reading.head.group or source.group.settings
        return reading

    def _find_members(self, source: ChatSource) -> tuple[dict[str, UUID], list[str]]:
        """Return the characters of a chat by card file, and warnings about missing ones."""
        files = source.group.members if source.group else [source.card_file]
        wanted = [file for file in files if file]
        found = {
            file: self.cast[key][0] for file in wanted if (key := fold_name(file)) in self.cast
        }
        warnings = [
            f"Its character {get_stem(file)!r} was not imported, so it is not in the chat."
            for file in wanted
            if file not in found
        ]
        if not wanted:
            warnings.append("No group of the folder has this chat, so it has no members.")
        return found, warnings

    def _find_speakers(self, source: ChatSource, members: Mapping[str, UUID]) -> dict[str, UUID]:
        """Return characters by card file and name.

        Former members of a group speak in its chats. Of equal names, members come first.
        """
        names = [(self.cast[fold_name(file)][1].name, member) for file, member in members.items()]
        found = {**dict(reversed(names)), **members}
        return found if source.card_file else {**self.speakers, **found}

    def _digest_name(self, source: ChatSource) -> bytes:
        """Return the digest of a chat's place, by which a later version of its file joins it."""
        place = [source.card_file or GROUP_CHATS, get_name(source.path)]
        return digest_parts(self.run.sealer, "chat-name", [part.encode() for part in place])


def order_chats(tree: FileTree, sources: Iterable[ChatSource]) -> list[ChatSource]:
    """Order the chats of one owner: branches after their main chats. Reads each first line."""
    by_path = {source.path: source for source in sources}
    by_stem = index_by_stem(by_path)
    mains: dict[str, str | None] = {}
    for path, source in by_path.items():
        main = ""
        # The step of a broken file reports it.
        with suppress(TransferFileError), _open_chat(tree, source) as file:
            main = read_start(file).main_chat
        mains[path] = by_stem.get(fold_name(main)) or by_stem.get(fold_name(get_stem(main)))
    return [replace(by_path[path], main_path=mains[path]) for path in sort_branches(mains)]


def _open_chat(tree: FileTree, source: ChatSource) -> BinaryIO:
    """Open a chat file. Older group chats get the header that is in the group's file."""
    file = tree.open(source.path)
    metadata = source.group.metadata.get(get_stem(source.path)) if source.group else None
    if metadata is None:
        return file
    with file:
        has_header = read_start(file).has_header
    file = tree.open(source.path)
    return file if has_header else add_header(file, metadata)


def make_finder(tree: FileTree, folder: UserFolder) -> FindFile:
    """Return a function that reads the files of messages by the paths in them."""

    def find(path: str) -> bytes | None:
        for written in (path, unquote(path.partition("?")[0])):
            relative = clean_path(written)
            found = folder.find(relative) if relative.startswith(_ATTACHMENTS) else None
            if found is not None and tree.get_size(found) <= MAX_ATTACHMENT_BYTES:
                with tree.open(found) as file:
                    return file.read()
        return None

    return find
