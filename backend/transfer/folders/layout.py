"""Find a SillyTavern user folder in a tree of files, and the files in it. Pure.

Source: SillyTavern 1.18, `src/constants.js` (`USER_DIRECTORY_TEMPLATE`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

CHARACTERS: Final = "characters"
CHATS: Final = "chats"
GROUPS: Final = "groups"
GROUP_CHATS: Final = "group chats"
WORLDS: Final = "worlds"
PERSONA_PICTURES: Final = "User Avatars"
PRESETS: Final = "OpenAI Settings"
QUICK_REPLIES: Final = "QuickReplies"
SETTINGS_FILE: Final = "settings.json"
SECRETS_FILE: Final = "secrets.json"

DEFAULT_HANDLE: Final = "default-user"
MIN_MARKERS: Final = 2
"""Folders and files of SillyTavern that a user folder contains at least."""

_MARKERS: Final = frozenset(
    {
        *(CHARACTERS, CHATS, GROUPS, GROUP_CHATS, WORLDS, PERSONA_PICTURES, PRESETS, QUICK_REPLIES),
        *("TextGen Settings", "NovelAI Settings", "KoboldAI Settings", SETTINGS_FILE),
    }
)
_OWN_PARTS: Final = frozenset({"backups", "thumbnails", "node_modules"})
"""Folders that are ignored in the search for a user folder."""

IMPORTED_FOLDERS: Final = frozenset(
    {CHARACTERS, CHATS, GROUPS, GROUP_CHATS, WORLDS, PERSONA_PICTURES, PRESETS, QUICK_REPLIES}
)

_NO_COUNTERPART: Final = "Talekeeper has nothing that this could become."
_TEXT_COMPLETION: Final = (
    "Talekeeper uses chat completion, so presets for text completion are left out."
)
_TEMPLATES: Final = "Templates are for text completion, which Talekeeper does not use."
SKIPPED_FOLDERS: Final[Mapping[str, str]] = {
    "user": "Its pictures and files are imported with the messages that name them.",
    "backups": "Copies of chats and settings that are in the folder as well.",
    "thumbnails": "Talekeeper makes its own thumbnails.",
    "vectors": "Talekeeper computes its own index of the imported messages.",
    "backgrounds": "Set backgrounds in the settings of a chat or a character.",
    "themes": "Talekeeper has its own themes.",
    "movingUI": "The layout of SillyTavern's panels has no counterpart.",
    "extensions": "Extensions of SillyTavern cannot run in Talekeeper.",
    "assets": "Sounds and other assets have no counterpart.",
    "TextGen Settings": _TEXT_COMPLETION,
    "NovelAI Settings": _TEXT_COMPLETION,
    "KoboldAI Settings": _TEXT_COMPLETION,
    "instruct": _TEMPLATES,
    "context": _TEMPLATES,
    "sysprompt": f"{_TEMPLATES} Chat-completion presets bring their own prompts.",
    "reasoning": "Talekeeper recognises the thoughts of models by itself.",
}
SPRITES_REASON: Final = "Expressions (sprites) of a character have no counterpart."
DEEPER_REASON: Final = "SillyTavern has no folders here."
UNKNOWN_FOLDER_REASON: Final = f"This is no folder of SillyTavern. {_NO_COUNTERPART}"
UNKNOWN_FILE_REASON: Final = _NO_COUNTERPART

_PLACEHOLDER: Final = ".gitkeep"
_APPLE_DOUBLE: Final = "._"
"""The beginning of the names of files that macOS adds on drives of other systems."""


def get_name(path: str) -> str:
    return path.rpartition("/")[2]


def get_stem(path: str) -> str:
    """Return the file name without its last extension."""
    name = get_name(path)
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem else name


def fold_name(text: str) -> str:
    """Return a key that is equal for names that Windows and macOS treat as the same file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def clean_path(path: str) -> str:
    """Return a path of SillyTavern's files with `/` and without a leading one.

    Empty if it leaves the folder, or is absolute on Windows.
    """
    parts = [part for part in path.replace("\\", "/").split("/") if part not in {"", "."}]
    is_outside = ".." in parts or any(":" in part for part in parts[:1])
    return "" if is_outside else "/".join(parts)


@dataclass(slots=True)
class UserFolder:
    """The files of one user's folder, by path relative to it.

    Args:
        root: The path of the folder in the tree, with a final `/`, or empty.
        paths: The files in it, as paths of the tree.
        others: The paths of other users' folders in the tree.
    """

    root: str
    paths: Sequence[str]
    others: Sequence[str] = ()
    _by_name: dict[str, str] = field(init=False)
    _by_folder: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name, self._by_folder = {}, {}
        exact = {path.removeprefix(self.root): path for path in self.paths}
        for relative, path in exact.items():
            self._by_name.setdefault(fold_name(relative), path)
            folder = relative.rpartition("/")[0]
            self._by_folder.setdefault(fold_name(folder), []).append(path)
        self._by_name |= exact

    def find(self, relative: str) -> str | None:
        """Return the path in the tree. Differences of case and of Unicode forms do not matter."""
        return self._by_name.get(relative) or self._by_name.get(fold_name(relative))

    def list_files(self, folder: str) -> list[str]:
        """Return the paths of the files directly in a folder, in order of their names."""
        return sorted(self._by_folder.get(fold_name(folder), ()), key=fold_name)

    def list_folders(self, folder: str = "") -> list[str]:
        """Return the names of the folders directly in a folder, in order, as they are written."""
        prefix = f"{fold_name(folder)}/" if folder else ""
        names: dict[str, str] = {}
        for key, paths in self._by_folder.items():
            if key and key.startswith(prefix):
                depth = prefix.count("/")
                parts = paths[0].removeprefix(self.root).split("/")
                names.setdefault(fold_name(parts[depth]), parts[depth])
        return sorted(names.values(), key=fold_name)

    def join(self, relative: str) -> str:
        """Return a path of the tree, for results about something that is not a file."""
        return self.root + relative


def find_user_folder(paths: Collection[str]) -> UserFolder | None:
    """Find the folder of a user: `default-user` if there are several, or None.

    The tree may be the folder itself, its parent `data`, or a whole installation.
    """
    markers: dict[str, set[str]] = {}
    for path in paths:
        for root, name in _iterate_markers(path):
            markers.setdefault(root, set()).add(name)
    found = [root for root, names in markers.items() if len(names) >= MIN_MARKERS]
    roots = [
        root
        for root in found
        if not any(root != other and root.startswith(other) for other in found)
    ]
    if not roots:
        return None
    best, *others = sorted(roots, key=lambda root: _rank(root, len(markers[root])))
    inside = [path for path in paths if path.startswith(best) and not _is_empty_file(path)]
    return UserFolder(best, inside, others)


def _iterate_markers(path: str) -> Iterator[tuple[str, str]]:
    """Yield the folders that a path speaks for: (root, marker)."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        if part in _OWN_PARTS:
            return
        is_file = place == len(parts) - 1
        if part == CHATS and place + 2 >= len(parts):  # not in the folder of a character
            return
        if part in _MARKERS and is_file == (part == SETTINGS_FILE):
            yield "".join(f"{each}/" for each in parts[:place]), part
            if not is_file:
                return


def _rank(root: str, markers: int) -> tuple[bool, int, int, str]:
    handle = root.rstrip("/").rpartition("/")[2]
    return handle != DEFAULT_HANDLE, -markers, root.count("/"), root


def _is_empty_file(path: str) -> bool:
    """True for the name of a file without content of the user."""
    name = get_name(path)
    return name == _PLACEHOLDER or name.startswith(_APPLE_DOUBLE)
