"""The planner of single files: cards, lorebooks, presets, scripts, campaigns, chronicles, chats.

A zip or folder with several such files is imported file by file. Chats come last, because they
refer to characters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeVar, cast
from uuid import UUID

import msgspec

from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError, ImageError
from backend.chats.schemas import NewChat
from backend.database.base import RecordCreated
from backend.errors import TooLargeError
from backend.http.schemas import MAX_PAGE, make_etag
from backend.regex.scripts import RegexScript, read_scripts
from backend.transfer.contracts import (
    ChatTarget,
    FileTree,
    ImportContext,
    ImportStep,
    StepResult,
)
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.bundles import BundleFormat, PictureReader
from backend.transfer.formats.chat_file import ChatFormat, ChatReading
from backend.transfer.imported import digest_file, digest_parts, find_imported, make_recorder
from backend.transfer.models import ItemKind
from backend.transfer.recognition import FileContent, Recognition, recognise
from backend.transfer.services import ImportServices

T = TypeVar("T")

MAX_MEMBERS = 20
"""Maximum number of characters in a chat."""
MAX_NAMED_CHARACTERS = 20_000
"""Maximum number of the account's characters that are searched by name."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An item that a service has stored, and the service's warnings."""

    id: UUID
    warnings: Sequence[str] = ()


class SingleFilePlanner:
    """Plans every tree that no other planner knows."""

    def __init__(self, services: ImportServices) -> None:
        self._services = services

    def matches(self, tree: FileTree) -> bool:  # noqa: ARG002  # the last of all planners
        return True

    def count(self, tree: FileTree) -> int:
        return len(tree.list_paths())

    async def plan(self, context: ImportContext) -> AsyncIterator[ImportStep]:
        """Yield a step for each file. Groups and chats follow the files that they refer to."""
        run = _FileRun(self._services, context)
        groups: list[ImportStep] = []
        chats: list[ImportStep] = []
        for path in context.tree.list_paths():
            try:
                found = await run.recognise(path)
            except TransferFileError as error:
                yield ImportStep(path=path, run=partial(_fail, error))
                continue
            step = run.make_step(path, found)
            if found.content == "group":
                groups.append(step)
            elif found.content == "chat":
                chats.append(step)
            else:
                yield step
        for step in (*groups, *chats):
            yield step


class _FileRun:
    """The steps of one import."""

    def __init__(self, services: ImportServices, context: ImportContext) -> None:
        self._services = services
        self._context = context
        self._identity = context.identity
        self._sealer = context.identity.sealer
        self._names: _Names | None = None

    async def recognise(self, path: str) -> Recognition:
        """Recognise a file. Raises `TransferFileError` if it is broken."""
        work = partial(
            recognise,
            self._context.tree,
            path,
            chat_format=self._context.options.chat_format,
        )
        return await self._work(work)

    def make_step(self, path: str, found: Recognition) -> ImportStep:
        match found.content:
            case None:
                return ImportStep(path=path, run=partial(_skip, found.reason))
            case "chat":
                run = partial(self._import_chats, path, found.chat_format)
                return ImportStep(path=path, run=run)
            case "bundle":
                run = partial(self._import_bundle, path, found.bundle_format)
                return ImportStep(path=path, run=run)
            case "scripts":
                return ImportStep(path=path, run=partial(self._import_scripts, path))
            case content:
                kind: ItemKind = "chat" if content == "group" else content
                run = partial(self._import_item, path, kind, self._find_importer(content))
                return ImportStep(path=path, run=run)

    def _find_importer(self, content: FileContent) -> _ImportItem:
        importers: Mapping[FileContent, _ImportItem] = {
            "character": self._import_character,
            "lorebook": self._import_lorebook,
            "preset": self._import_preset,
            "campaign": self._import_campaign,
            "chronicle": self._import_chronicle,
            "group": self._import_group,
        }
        return importers[content]

    async def _import_item(
        self, path: str, kind: ItemKind, importer: _ImportItem, _: ImportContext
    ) -> StepResult:
        """Import a file that becomes one item, unless it is already there."""
        digest = await self._digest(path)
        if (found := await self._find(digest)) is not None:
            return StepResult(outcome="already_there", kind=kind, item_id=found)
        data = await self._read(path)
        record = make_recorder(self._sealer, kind, digest)
        made = await importer(data, PurePosixPath(path).stem, record)
        return StepResult(outcome="imported", kind=kind, item_id=made.id, warnings=made.warnings)

    async def _import_character(self, data: bytes, _: str, record: RecordCreated) -> _Item:
        made = await self._services.characters.import_file(self._identity, data, record=record)
        self._names = None
        return _Item(made.character.id, made.warnings)

    async def _import_lorebook(self, data: bytes, name: str, record: RecordCreated) -> _Item:
        service = self._services.lorebooks
        made = await service.import_file(self._identity, data, name, record=record)
        return _Item(made.lorebook.id, made.warnings)

    async def _import_preset(self, data: bytes, name: str, record: RecordCreated) -> _Item:
        service = self._services.presets
        made = await service.import_file(self._identity, data, name, record=record)
        return _Item(made.preset.id, made.warnings)

    async def _import_campaign(self, data: bytes, name: str, record: RecordCreated) -> _Item:
        service = self._services.campaigns
        made = await service.import_new(self._identity, data, name, record=record)
        return _Item(made.id, made.warnings)

    async def _import_chronicle(self, data: bytes, name: str, record: RecordCreated) -> _Item:
        service = self._services.chronicles
        made = await service.import_new(self._identity, data, name, record=record)
        warnings = [f"Events that were left out: {made.skipped:,}."] if made.skipped else []
        return _Item(made.chronicle_id, warnings)

    async def _import_group(self, data: bytes, name: str, record: RecordCreated) -> _Item:
        """Open a chat with the members of a group of SillyTavern."""
        group = await self._work(partial(_read_group, data))
        names = await self._load_names()
        wanted = [each for each in group.members if isinstance(each, str)]
        found = [each for each in map(names.find, wanted) if each is not None]
        if not found:
            raise TransferFileError(
                "None of the group's characters is here. Import their cards before the group, or "
                "together with it."
            )
        members = list(dict.fromkeys(found))[:MAX_MEMBERS]
        title = (group.name.strip() or name)[:500]
        new = NewChat(character_ids=members, title=title)
        chat = await self._services.opening.open(self._identity, new, record=record)
        missing = [each for each in wanted if names.find(each) is None]
        warnings = [f"Members that were not found: {', '.join(missing)}."] if missing else []
        return _Item(chat.id, warnings)

    async def _import_scripts(self, path: str, _: ImportContext) -> StepResult:
        """Add the scripts that the account does not have yet after its others."""
        count, scripts = await self._work(partial(_read_scripts, await self._read(path)))
        if not scripts:
            raise TransferFileError("The file contains no valid regex script.")
        service = self._services.scripts
        present, revision = await service.read(self._identity)
        missing = [each for each in scripts if self._context.options.copy or each not in present]
        if not missing:
            return StepResult(outcome="already_there", kind="scripts")
        together = [*present, *missing]
        await service.replace(self._identity, together, if_match=make_etag(revision))
        invalid = count - len(scripts)
        warnings = [f"Invalid scripts were left out: {invalid:,}."] if invalid else []
        return StepResult(outcome="imported", kind="scripts", warnings=warnings)

    async def _import_chats(
        self, path: str, chat_format: ChatFormat | None, context: ImportContext
    ) -> StepResult:
        """Store each chat of a file that is not already there.

        The first chat has the digest of the file, and the others have derived digests.
        """
        if chat_format is None:
            raise TransferFileError("The format of the chat is unknown.")
        name = PurePosixPath(path).name
        file_digest, names = await self._digest(path), await self._load_names()
        results: list[StepResult] = []
        async with self._open(path) as file:
            readings = chat_format.read(file, name=name)
            while (reading := await self._work(partial(next, readings, None))) is not None:
                digest = _digest_chat(context, file_digest, len(results))
                target = names.make_target(context, reading, name=name, digest=digest)
                stored = await self._store_chat(reading, target)
                results.append(names.add_warning(reading, target, stored))
        return _join_chats(results)

    async def _import_bundle(
        self, path: str, bundle_format: BundleFormat | None, context: ImportContext
    ) -> StepResult:
        """Import the characters of a file of another program, each with its chats."""
        if bundle_format is None:
            raise TransferFileError("The format of the file is unknown.")
        name = PurePosixPath(path).name
        file_digest, names = await self._digest(path), await self._load_names()
        characters: list[StepResult] = []
        chats: list[StepResult] = []
        pictures: dict[str, UUID] = {}
        warnings: list[str] = []
        async with self._open(path) as file:
            bundles = bundle_format.read(file, name=name)
            while (bundle := await self._work(partial(next, bundles, None))) is not None:
                warnings += bundle.warnings
                members: list[UUID] = []
                if bundle.card is not None:
                    result = await self._import_card_of_bundle(bundle.name, bundle.card)
                    characters.append(result)
                    warnings += result.warnings
                    if result.item_id is not None:
                        members = [result.item_id]
                        names.prefer(bundle.name, result.item_id)
                        if bundle.picture and result.outcome == "imported":
                            pictures[bundle.picture] = result.item_id
                for reading in bundle.chats:
                    digest = _digest_chat(context, file_digest, 1 + len(chats))
                    target = names.make_target(
                        context, reading, name=name, digest=digest, members=members
                    )
                    chats.append(await self._store_chat(reading, target))
        if pictures and bundle_format.read_pictures is not None:
            warnings += await self._set_pictures(path, bundle_format.read_pictures, pictures)
        self._names = None
        return _join_bundle(characters, chats, warnings)

    async def _import_card_of_bundle(self, name: str, card: bytes) -> StepResult:
        digest = digest_parts(self._sealer, "card-of-file", [card])
        if (found := await self._find(digest)) is not None:
            return StepResult(outcome="already_there", kind="character", item_id=found)
        record = make_recorder(self._sealer, "character", digest)
        try:
            made = await self._services.characters.import_file(self._identity, card, record=record)
        except CardError as error:
            reason = f"The character {name} was left out: {error.detail}"
            return StepResult(outcome="failed", kind="character", warnings=[reason])
        return StepResult(
            outcome="imported", kind="character", item_id=made.character.id, warnings=made.warnings
        )

    async def _set_pictures(
        self, path: str, read_pictures: PictureReader, wanted: Mapping[str, UUID]
    ) -> list[str]:
        """Set the pictures of new characters. Return warnings."""
        warnings: list[str] = []
        async with self._open(path) as file:
            pictures = read_pictures(file, names=wanted.keys())
            while (found := await self._work(partial(next, pictures, None))) is not None:
                name, data = found
                try:
                    await self._services.avatars.replace(
                        self._identity, "character", wanted[name], data
                    )
                except (ImageError, TooLargeError) as error:
                    warnings.append(f"A picture was left out: {error.detail}")
        return warnings

    async def _store_chat(self, reading: ChatReading, target: ChatTarget) -> StepResult:
        """Store a chat unless it is already there."""
        if target.digest and (found := await self._find(target.digest)) is not None:
            await self._work(partial(_skip_messages, reading))
            return StepResult(outcome="already_there", kind="chat", item_id=found)
        return await self._services.store_chat(
            self._identity, reading, target, report=self._context.report
        )

    @asynccontextmanager
    async def _open(self, path: str) -> AsyncGenerator[BinaryIO]:
        file = await self._work(partial(self._context.tree.open, path))
        try:
            yield file
        finally:
            file.close()

    async def _load_names(self) -> _Names:
        """Return the names of characters and personas. A new character makes them stale."""
        if self._names is not None:
            return self._names
        names, after = _Names(self._context), None
        for _ in range(MAX_NAMED_CHARACTERS // MAX_PAGE):
            page = await self._services.characters.list_page(
                self._identity, limit=MAX_PAGE, after=after, search=""
            )
            for item in page.items:
                names.add(item.name, item.id)
            if page.next is None:
                break
            after = UUID(page.next)
        personas = await self._services.personas.list_page(
            self._identity, limit=MAX_PAGE, after=None
        )
        names.personas = {item.name: item.id for item in reversed(personas.items)}
        self._names = names
        return names

    async def _find(self, digest: bytes) -> UUID | None:
        """Return the item that was made of the same file, unless the request wants a copy."""
        if self._context.options.copy:
            return None
        async with self._services.database.read() as session:
            found = await find_imported(session, self._identity.user_id, digest)
        return found.item_id if found else None

    async def _read(self, path: str) -> bytes:
        def read() -> bytes:
            with self._context.tree.open(path) as file:
                return file.read()

        return await self._work(read)

    async def _digest(self, path: str) -> bytes:
        def digest() -> bytes:
            with self._context.tree.open(path) as file:
                return digest_file(self._sealer, file)

        return await self._work(digest)

    async def _work(self, work: Callable[[], T]) -> T:
        return await self._services.pool.run(self._identity.user_id, work, is_job=True)


_ImportItem = Callable[[bytes, str, RecordCreated], Awaitable[_Item]]


class _Names:
    """The characters and personas that chats and groups refer to by name.

    Of several characters with one name, the newest is found.
    """

    def __init__(self, context: ImportContext) -> None:
        self._by_file = {
            PurePosixPath(path).name: item_id
            for (kind, path), item_id in context.found.items()
            if kind == "character"
        }
        self._by_name: dict[str, UUID] = {}
        self.personas: dict[str, UUID] = {}

    def add(self, name: str, character_id: UUID) -> None:
        self._by_name.setdefault(name, character_id)
        self._by_name.setdefault(_fold(name), character_id)

    def prefer(self, name: str, character_id: UUID) -> None:
        """Let a name mean this character instead of an earlier one."""
        self._by_name[name] = self._by_name[_fold(name)] = character_id

    def find(self, name: str) -> UUID | None:
        """Return a character by the file of its card, or by its name."""
        stem = name.removesuffix(".png")
        keys = (name, stem, _fold(name), _fold(stem))
        found = (self._by_name.get(each) for each in keys)
        return self._by_file.get(name) or next(filter(None, found), None)

    def make_target(
        self,
        context: ImportContext,
        reading: ChatReading,
        *,
        name: str,
        digest: bytes,
        members: Sequence[UUID] = (),
    ) -> ChatTarget:
        """Return where a chat belongs. Its members are `members`, or else those that it names."""
        if not (members := members or context.options.character_ids):
            named = map(self.find, reading.head.character_names)
            members = [each for each in named if each is not None]
        return ChatTarget(
            file_name=name,
            digest=digest,
            members=list(dict.fromkeys(members))[:MAX_MEMBERS],
            speakers={**self._by_name, **self._by_file},
            personas=self.personas,
        )

    def add_warning(
        self, reading: ChatReading, target: ChatTarget, result: StepResult
    ) -> StepResult:
        """Return the result with a warning if the chat has no character."""
        if target.members or result.outcome != "imported":
            return result
        names = ", ".join(reading.head.character_names)
        reason = f"No character has the name {names}" if names else "The file names no character"
        warning = f"{reason}, so the chat has none. Add one in the chat."
        return replace(result, warnings=[*result.warnings, warning])


def _fold(name: str) -> str:
    return " ".join(name.casefold().split())


class _Group(msgspec.Struct):
    """A group file of SillyTavern, as far as a chat needs it."""

    name: str = ""
    members: list[Any] = []


def _read_group(data: bytes) -> _Group:
    try:
        return msgspec.convert(parse_json(data), _Group)
    except (CardError, msgspec.ValidationError) as error:
        raise TransferFileError("The group is invalid: it needs `name` and `members`.") from error


def _read_scripts(data: bytes) -> tuple[int, list[RegexScript]]:
    """Return the number of scripts in a file, and the valid ones."""
    try:
        value: Any = parse_json(data)
    except CardError as error:
        raise TransferFileError(error.detail) from error
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    return len(listed), read_scripts({"regex_scripts": listed})


def _digest_chat(context: ImportContext, file_digest: bytes, number: int) -> bytes:
    if not number:
        return file_digest
    parts = (file_digest, number.to_bytes(4, "big"))
    return digest_parts(context.identity.sealer, "chat-of-file", parts)


def _skip_messages(reading: ChatReading) -> None:
    """Read a chat to its end, because the next one may follow in the file."""
    for _ in reading.messages:
        pass


def _join_chats(results: Sequence[StepResult]) -> StepResult:
    """Return the result of a file with several chats. Its item is the first new chat."""
    if not results:
        return StepResult(outcome="skipped", detail="The file contains no chat.")
    if len(results) == 1:
        return results[0]
    first = next((each for each in results if each.outcome == "imported"), results[0])
    imported = sum(each.outcome == "imported" for each in results)
    return replace(
        first,
        detail=f"New chats: {imported:,} of {len(results):,}.",
        warnings=[warning for each in results for warning in each.warnings],
    )


def _join_bundle(
    characters: Sequence[StepResult], chats: Sequence[StepResult], warnings: Sequence[str]
) -> StepResult:
    """Return the result of a file with characters and chats. Its item is the first character."""
    results = [*characters, *chats]
    if not any(each.item_id for each in results):
        return StepResult(
            outcome="failed", detail="No character could be imported.", warnings=warnings
        )
    first = next(each for each in results if each.item_id)
    new_characters = sum(each.outcome == "imported" for each in characters)
    new_chats = sum(each.outcome == "imported" for each in chats)
    warnings = [*warnings, *(warning for each in chats for warning in each.warnings)]
    return StepResult(
        outcome="imported" if new_characters or new_chats else "already_there",
        kind=first.kind,
        item_id=first.item_id,
        detail=f"New: {new_characters:,} of {len(characters):,} characters, {new_chats:,} of "
        f"{len(chats):,} chats.",
        warnings=warnings,
    )


async def _skip(reason: str, _: ImportContext) -> StepResult:
    return StepResult(outcome="skipped", detail=reason)


async def _fail(error: TransferFileError, _: ImportContext) -> StepResult:
    raise error
