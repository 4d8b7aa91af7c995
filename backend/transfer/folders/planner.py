"""Plan the import of a SillyTavern user folder: its contents, and the order of the steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from backend.core.cpu_pool import check_stopped
from backend.transfer.contracts import FileTree, ImportContext, ImportStep, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.folders import layout
from backend.transfer.folders.account import (
    import_quick_replies,
    import_secrets,
    import_settings,
)
from backend.transfer.folders.chats import ChatImport, ChatSource, order_chats
from backend.transfer.folders.groups import GroupFile, read_group
from backend.transfer.folders.layout import UserFolder, find_user_folder, fold_name
from backend.transfer.folders.library import import_card, import_preset, import_world
from backend.transfer.folders.personas import import_persona, make_path
from backend.transfer.folders.run import (
    FolderContents,
    FolderRun,
    read_whole,
    skip,
)
from backend.transfer.folders.settings_file import FolderSettings, read_settings_file
from backend.transfer.services import ImportServices

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class FolderOutline:
    """The files of a folder by the step that imports them, in the order of the steps.

    `chats` has a list for each card and for each group. `skipped` are reasons by path of a file or
    of a folder.
    """

    contents: FolderContents
    group_chats: Mapping[str, Sequence[str]]
    chats: Sequence[Sequence[ChatSource]]
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def step_count(self) -> int:
        folder = self.contents.folder
        files = sum(len(folder.list_files(name)) for name in _FILE_FOLDERS)
        singles = sum(
            folder.find(name) is not None for name in (layout.SETTINGS_FILE, layout.SECRETS_FILE)
        )
        personas = len(self.contents.settings.personas)
        chats = sum(map(len, self.chats))
        return files + singles + personas + chats + len(self.skipped)


_FILE_FOLDERS = (
    layout.WORLDS,
    layout.CHARACTERS,
    layout.PRESETS,
    layout.QUICK_REPLIES,
    layout.GROUPS,
)
"""Folders in which each file is one step."""


def read_outline(tree: FileTree) -> FolderOutline:
    """Find a user folder, and read its settings and groups. CPU-bound.

    Raises `TransferFileError` if there is none.
    """
    paths = tree.list_paths()
    folder = find_user_folder(paths)
    if folder is None:
        raise TransferFileError("There is no user folder of SillyTavern in it.")
    faults: dict[str, TransferFileError] = {}
    settings = FolderSettings()
    if (path := folder.find(layout.SETTINGS_FILE)) is not None:
        settings = _read(tree, path, read_settings_file, faults) or settings
    groups: dict[str, GroupFile] = {}
    for path in folder.list_files(layout.GROUPS):
        check_stopped()
        read = partial(read_group, name=layout.get_stem(path))
        if (group := _read(tree, path, read, faults)) is not None:
            groups[path] = group
    contents = FolderContents(folder=folder, settings=settings, groups=groups, faults=faults)
    by_group = _sort_group_chats(folder, groups)
    owned = [
        [ChatSource(path=chat, group=groups.get(path)) for chat in chats]
        for path, chats in by_group.items()
    ]
    outline = FolderOutline(
        contents=contents, group_chats=by_group, chats=[*_list_chats(folder), *owned]
    )
    outline.skipped |= _list_skipped(folder, settings, outside=len(paths) - len(folder.paths))
    return outline


def _read(
    tree: FileTree,
    path: str,
    read: Callable[[bytes], T],
    faults: dict[str, TransferFileError],
) -> T | None:
    """Read a file, or note its error for its step."""
    try:
        return read(read_whole(tree, path))
    except TransferFileError as error:
        faults[path] = error
        return None


def _list_chats(folder: UserFolder) -> Iterator[list[ChatSource]]:
    for name in folder.list_folders(layout.CHATS):
        card_file = f"{name}.png"
        yield [
            ChatSource(path=path, card_file=card_file)
            for path in folder.list_files(f"{layout.CHATS}/{name}")
        ]


def _sort_group_chats(folder: UserFolder, groups: Mapping[str, GroupFile]) -> dict[str, list[str]]:
    """Return the chats of each group by the group's path. Those of no group are under ""."""
    owners = {fold_name(chat): path for path, group in groups.items() for chat in group.chats}
    found: dict[str, list[str]] = {path: [] for path in groups}
    for path in folder.list_files(layout.GROUP_CHATS):
        owner = owners.get(fold_name(layout.get_stem(path)), "")
        found.setdefault(owner, []).append(path)
    return found


def _list_skipped(
    folder: UserFolder, settings: FolderSettings, *, outside: int
) -> Iterator[tuple[str, str]]:
    """Yield the files and folders that are not imported: (path, reason)."""
    chosen = folder.root.rstrip("/")
    for other in folder.others:
        reason = f"Another user's folder: {chosen!r} was imported. Import this one by itself."
        yield other.rstrip("/"), reason
    if chosen and outside:
        yield chosen, f"This folder was imported. Files outside of it ({outside:,}) were ignored."
    personas = {fold_name(persona.file) for persona in settings.personas}
    for path in folder.list_files(layout.PERSONA_PICTURES):
        if fold_name(layout.get_name(path)) not in personas:
            yield path, "No persona in the settings has this picture."
    for path in folder.list_files(layout.CHATS):
        yield path, "A chat belongs into the folder of its character. Import it by itself."
    for path in folder.list_files(""):
        if layout.get_name(path) not in {layout.SETTINGS_FILE, layout.SECRETS_FILE}:
            yield path, layout.UNKNOWN_FILE_REASON
    for name in folder.list_folders():
        yield from _list_skipped_folders(folder, name)


def _list_skipped_folders(folder: UserFolder, name: str) -> Iterator[tuple[str, str]]:
    """Yield a folder without counterpart, or the unexpected folders in it."""
    if not _is_imported(name):
        reason = layout.SKIPPED_FOLDERS.get(name, layout.UNKNOWN_FOLDER_REASON)
        yield folder.join(name), reason
        return
    for inner in folder.list_folders(name):
        path = f"{name}/{inner}"
        if fold_name(name) == layout.CHARACTERS:
            yield folder.join(path), layout.SPRITES_REASON
        elif fold_name(name) != layout.CHATS:
            yield folder.join(path), layout.DEEPER_REASON
        else:
            for deeper in folder.list_folders(path):
                yield folder.join(f"{path}/{deeper}"), layout.DEEPER_REASON


def _is_imported(name: str) -> bool:
    return fold_name(name) in {fold_name(each) for each in layout.IMPORTED_FOLDERS}


class SillyTavernPlanner:
    """Plans the import of a user folder, of `data`, or of a whole installation.

    An `ImportPlanner`. Files are read one at a time, and a plan contains only paths, the settings
    and the groups.
    """

    def __init__(self, services: ImportServices) -> None:
        self._services = services

    def matches(self, tree: FileTree) -> bool:
        return find_user_folder(tree.list_paths()) is not None

    def count(self, tree: FileTree) -> int:
        return read_outline(tree).step_count

    async def plan(self, context: ImportContext) -> AsyncIterator[ImportStep]:
        pool, user_id = self._services.pool, context.identity.user_id
        outline = await pool.run(user_id, partial(read_outline, context.tree), is_job=True)
        run = FolderRun(services=self._services, contents=outline.contents, context=context)
        for path, reason in outline.skipped.items():
            yield ImportStep(path=path, run=partial(_skip, reason))
        for step in _plan_library(run):
            yield step
        if outline.group_chats or outline.chats:
            chats = await ChatImport.begin(run)
            for path in run.folder.list_files(layout.GROUPS):
                listed = outline.group_chats.get(path, ())
                yield ImportStep(path=path, run=partial(chats.import_group, path, listed))
            for owned in outline.chats:
                for source in await run.work(partial(order_chats, context.tree, owned)):
                    yield ImportStep(path=source.path, run=partial(chats.import_chat, source))


_Import = Callable[[FolderRun, str, ImportContext], Awaitable[StepResult]]


def _plan_library(run: FolderRun) -> Iterator[ImportStep]:
    """Yield the steps of everything except chats."""
    folder = run.folder

    def make(importer: _Import, paths: Sequence[str]) -> Iterator[ImportStep]:
        return (ImportStep(path=path, run=partial(importer, run, path)) for path in paths)

    yield from make(import_world, folder.list_files(layout.WORLDS))
    yield from make(import_card, folder.list_files(layout.CHARACTERS))
    for persona in run.settings.personas:
        yield ImportStep(path=make_path(folder, persona), run=partial(import_persona, run, persona))
    settings, secrets = (folder.find(name) for name in (layout.SETTINGS_FILE, layout.SECRETS_FILE))
    yield from make(import_settings, [settings] if settings else [])
    yield from make(import_preset, folder.list_files(layout.PRESETS))
    yield from make(import_quick_replies, folder.list_files(layout.QUICK_REPLIES))
    yield from make(import_secrets, [secrets] if secrets else [])


async def _skip(reason: str, _context: ImportContext) -> StepResult:
    return skip(reason)
