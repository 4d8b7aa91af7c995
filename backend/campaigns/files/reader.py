"""Recognises what a zip of a campaign holds, and reads it. CPU-bound, no database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.archive import MAIN, list_covered_items, read_archive
from backend.campaigns.files.draft import ZIP_ENTRIES, CampaignDraft
from backend.campaigns.files.vault import FOLDER_KINDS
from backend.campaigns.files.vault_reader import is_vault, read_vault
from backend.characters.cards.charx import is_archive, unpack
from backend.characters.cards.model import check_file_size
from backend.characters.errors import CardError, CardLimitError

OWN_FOLDERS = frozenset({"canon", "chats", *FOLDER_KINDS})
MAX_FOLDERS = 3
"""Folders around everything that are taken off."""


def read_campaign(data: bytes, name: str) -> tuple[CampaignDraft, Collection[UUID]]:
    """Read a zip: return its campaign, and the items that its files leave out.

    `name` is its name if neither the files nor a folder around them have one. Raises
    `CampaignFileError`, `TooLargeError`.
    """
    check_file_size(len(data))
    if not is_archive(data):
        raise CampaignFileError("This is not a zip file.")
    try:
        files, folder = _without_folder(unpack(data, label="zip file", entries=ZIP_ENTRIES))
    except CardLimitError as error:
        limit = {"limit": error.limit, "allowed": error.allowed, "found": error.found}
        raise CampaignFileError(error.detail, extra=limit) from error
    except CardError as error:
        raise CampaignFileError(error.detail) from error
    if MAIN in files:
        draft = read_archive(files)
        return draft, list_covered_items(files, draft)
    if is_vault(files):
        return read_vault(files, folder.strip() or name), ()
    raise CampaignFileError(
        f"The zip file contains no campaign: neither `{MAIN}` nor a vault with `campaign.md` or "
        "a folder `canon`."
    )


def _without_folder(files: Mapping[str, bytes]) -> tuple[dict[str, bytes], str]:
    """Remove hidden files, and the folder that contains all others; return its name, too.

    Such a folder may be in another one. Then the inner one's name counts.
    """
    kept = {path: data for path, data in files.items() if not _is_hidden(path)}
    folder = ""
    for _ in range(MAX_FOLDERS):
        tops = {path.partition("/")[0] for path in kept}
        if (
            len(tops) != 1
            or {*map(str.casefold, tops)} <= OWN_FOLDERS
            or any("/" not in path for path in kept)
        ):
            break
        [folder] = tops
        kept = {path.partition("/")[2]: data for path, data in kept.items()}
    return kept, folder


def _is_hidden(path: str) -> bool:
    """Whether it is a program's own file: `.obsidian/`, `__MACOSX/`, `.DS_Store`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))
