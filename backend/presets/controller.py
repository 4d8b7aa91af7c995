"""Prompt presets and their files: `/presets`."""

from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.cards.model import MEGABYTE
from backend.characters.errors import CharacterNotFoundError
from backend.characters.uploads import NamedFileOperation, make_file_response, read_upload
from backend.context.blocks import PresetFields
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    FILES,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    tag_view,
)
from backend.presets.errors import PresetFileError, PresetNotFoundError, PresetsFullError
from backend.presets.files import MAX_FILE_BYTES
from backend.presets.schemas import ChosenPreset, ImportedPreset, PresetItem, PresetView
from backend.presets.service import PresetService


class PresetController(Controller):
    """Prompt presets."""

    path = "/presets"
    tags = ("Presets",)

    @get(summary="List presets")
    async def list_presets(
        self,
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[PresetItem]:
        """Presets, newest first."""
        return await presets.list_page(identity, limit=limit, after=after)

    @post(opt={RAISES: (PresetsFullError,)}, summary="Create a preset")
    async def create_preset(
        self,
        data: JSONBody[PresetFields],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
    ) -> Response[PresetView]:
        """Create a preset. By default it has the blocks of a prompt without a preset.

        It applies to the chats, the characters and the account that choose it.
        """
        return tag_view(await presets.create(identity, data))

    @post(
        "/import",
        opt={ENDS_WITH_CLIENT: True, RAISES: (PresetFileError, PresetsFullError)},
        summary="Import a preset file",
        operation_class=NamedFileOperation,
        request_max_body_size=MAX_FILE_BYTES + MEGABYTE,
    )
    async def import_preset(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
    ) -> ImportedPreset:
        """Create a preset from a chat-completion preset of SillyTavern.

        The default for `name` is the file's name. Unknown members of the file are kept, and are
        exported again. Blocks for the campaign, the summary and the memory, which the format does
        not have, are added around the history.
        """
        upload = await read_upload(request)
        stem = PurePosixPath(upload.filename.replace("\\", "/")).stem
        return await presets.import_file(identity, upload.data, upload.name.strip() or stem)

    @get("/{preset_id:uuid}", opt={RAISES: (PresetNotFoundError,)}, summary="Read a preset")
    async def get_preset(
        self,
        preset_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
    ) -> Response[PresetView]:
        """A preset with all its blocks."""
        return tag_view(await presets.get(identity, preset_id))

    @patch(
        "/{preset_id:uuid}",
        opt={RAISES: (PresetNotFoundError, PreconditionFailedError), PATCHES: PresetFields},
        summary="Change a preset",
    )
    async def patch_preset(
        self,
        preset_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
        if_match: IfMatch = None,
    ) -> Response[PresetView]:
        """Change members of a preset. Null resets a member to its default.

        `blocks` replaces all blocks.
        """
        return tag_view(await presets.patch(identity, preset_id, data, if_match=if_match))

    @delete(
        "/{preset_id:uuid}",
        opt={RAISES: (PresetNotFoundError, PreconditionFailedError)},
        summary="Delete a preset",
    )
    async def delete_preset(
        self,
        preset_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a preset."""
        await presets.delete(identity, preset_id, if_match=if_match)

    @get(
        "/{preset_id:uuid}/export",
        opt={RAISES: (PresetNotFoundError,), FILES: ("application/json",)},
        summary="Export a preset file",
        media_type="application/json",
    )
    async def export_preset(
        self,
        request: AnyRequest,
        preset_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
        activity: NamedDependency[ActivityLog],
    ) -> Response[bytes]:
        """The preset as a chat-completion preset of SillyTavern.

        An imported file is exported as it was, except for your changes.
        """
        file = await presets.export(identity, preset_id)
        await activity.note(request, "exported", detail="preset")
        return make_file_response(file)


class CharacterPresetController(Controller):
    """The preset of a character."""

    path = "/characters/{character_id:uuid}/preset"
    tags = ("Presets",)

    @put(
        status_code=204,
        opt={RAISES: (CharacterNotFoundError, PresetNotFoundError)},
        summary="Choose a character's preset",
    )
    async def choose_character_preset(
        self,
        character_id: FromPath[UUID],
        data: JSONBody[ChosenPreset],
        identity: NamedDependency[Identity],
        presets: NamedDependency[PresetService],
    ) -> None:
        """Use a preset for the character's prompts in chats that have none; null: the account's.

        Exported cards do not contain it.
        """
        await presets.choose_for_character(identity, character_id, data.preset_id)
