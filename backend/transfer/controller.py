"""Imports of files and folders: `/imports` and `POST /chats/import`."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
)
from litestar.params import FromPath, FromQuery, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.cards.charx import OCTET_STREAM
from backend.characters.errors import CharacterNotFoundError
from backend.characters.uploads import FIELD, MULTIPART
from backend.errors import (
    BadRequestError,
    ForbiddenError,
    TooLargeError,
    UnsupportedMediaTypeError,
    ValidationError,
)
from backend.http.schemas import RAISES, STORES, STREAMS_BODY, AnyRequest, Page, PageSize
from backend.transfer.contracts import ImportOptions
from backend.transfer.errors import ImportNotContinuableError, ImportNotFoundError
from backend.transfer.imports import ImportService
from backend.transfer.models import Outcome
from backend.transfer.schemas import ImportResultView, ImportView
from backend.transfer.uploads import MAX_NAME_CHARACTERS, UploadNotStoredError

MAX_CHARACTERS = 20
MAX_SECRETS = 100

UploadName = Annotated[str, QueryParameter(max_length=MAX_NAME_CHARACTERS)]
CharacterIds = Annotated[list[UUID] | None, QueryParameter(max_items=MAX_CHARACTERS)]
FormatName = Annotated[str | None, QueryParameter(name="format", max_length=100)]

_UPLOAD_ERRORS = (
    BadRequestError,
    CharacterNotFoundError,
    TooLargeError,
    UnsupportedMediaTypeError,
    ValidationError,
    UploadNotStoredError,
)
_TAGS = ("Imports",)


@dataclass
class UploadOperation(Operation):
    """Documents a body that is a file, or a form with a file."""

    def __post_init__(self) -> None:
        file = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        form = Schema(type=OpenAPIType.OBJECT, properties={FIELD: file}, required=[FIELD])
        content = {
            MULTIPART: OpenAPIMediaType(schema=form),
            OCTET_STREAM: OpenAPIMediaType(schema=file),
        }
        self.request_body = RequestBody(content=content, required=True)


class ImportController(Controller):
    """Imports."""

    path = "/imports"
    tags = _TAGS

    @post(
        status_code=202,
        opt={STREAMS_BODY: True, RAISES: (*_UPLOAD_ERRORS, ForbiddenError)},
        operation_id="createImport",
        summary="Import a file or a folder",
        operation_class=UploadOperation,
        request_max_body_size=None,
    )
    async def create_import(  # noqa: PLR0913, PLR0917  # one parameter for each option
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
        activity: NamedDependency[ActivityLog],
        name: UploadName = "",
        copy: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
        character_ids: CharacterIds = None,
        chat_format: FormatName = None,
        secrets: Annotated[list[str] | None, QueryParameter(max_items=MAX_SECRETS)] = None,
    ) -> ImportView:
        """Upload a file of any kind: a SillyTavern folder or an archive in a zip, a chat, a card.

        The body is a form with a part `file`, or the file itself with its name in
        `Content-Disposition` or `name`. Its kind is recognised by its content. A job imports it,
        and each file gets a result. Files that were imported before are left out, unless `copy` is
        set. Broken files do not affect the others.

        `character_ids` are the members of a chat, if its names do not find them. `format` names the
        format of chats that are not recognised. `secrets` names the keys of providers in
        `secrets.json` that are imported, which needs the scope `manage`; by default none is.
        """
        if secrets and not identity.may("manage"):
            raise ForbiddenError("Importing the keys of providers needs the scope `manage`.")
        options = ImportOptions(
            copy=copy,
            character_ids=character_ids or (),
            chat_format=chat_format,
            secrets=frozenset(secrets or ()),
        )
        view = await imports.accept(request, identity, options, name=name)
        await activity.note(request, "imported")
        return view

    @get(summary="List imports")
    async def list_imports(
        self,
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ImportView]:
        """List imports, newest first."""
        return await imports.list_page(identity, limit=limit, after=after)

    @get("/{import_id:uuid}", opt={RAISES: (ImportNotFoundError,)}, summary="Read an import")
    async def get_import(
        self,
        import_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
    ) -> ImportView:
        """Return an import. Its job can be followed and stopped under `/jobs`."""
        return await imports.get(identity, import_id)

    @get(
        "/{import_id:uuid}/results",
        opt={RAISES: (ImportNotFoundError,)},
        summary="List the results of an import",
    )
    async def list_import_results(
        self,
        import_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
        outcome: FromQuery[Outcome | None] = None,
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ImportResultView]:
        """List the result of each file, in the order of the import."""
        return await imports.list_results(
            identity, import_id, outcome=outcome, limit=limit, after=after
        )

    @post(
        "/{import_id:uuid}/continue",
        status_code=202,
        opt={STORES: False, RAISES: (ImportNotFoundError, ImportNotContinuableError)},
        summary="Continue an import",
    )
    async def continue_import(
        self,
        import_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
    ) -> ImportView:
        """Continue an import that was stopped with the files that have no result.

        Files that have failed are tried again, for example after you have made room.
        """
        return await imports.resume(identity, import_id)

    @delete("/{import_id:uuid}", opt={RAISES: (ImportNotFoundError,)}, summary="Delete an import")
    async def delete_import(
        self,
        import_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
    ) -> None:
        """Stop an import if it is running, and delete its upload and its results.

        Items that were imported are kept.
        """
        await imports.delete(identity, import_id)


class ChatImportController(Controller):
    """`POST /chats/import`: import one chat file."""

    path = "/chats/import"
    tags = _TAGS

    @post(
        status_code=202,
        opt={STREAMS_BODY: True, RAISES: _UPLOAD_ERRORS},
        operation_id="importChat",
        summary="Import a chat file",
        operation_class=UploadOperation,
        request_max_body_size=None,
    )
    async def import_chat(  # one parameter for each option
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        imports: NamedDependency[ImportService],
        activity: NamedDependency[ActivityLog],
        name: UploadName = "",
        copy: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
        character_ids: CharacterIds = None,
        chat_format: FormatName = None,
    ) -> ImportView:
        """Upload a chat of SillyTavern or another program, or a chat's archive.

        It is imported as with `POST /imports`. The view names the chat in `chat_id` when the import
        has finished. The same file makes one chat, unless `copy` is set. The chat's characters are
        `character_ids`, or else those with the names in the file.
        """
        options = ImportOptions(
            copy=copy,
            character_ids=character_ids or (),
            chat_format=chat_format,
        )
        view = await imports.accept(request, identity, options, name=name)
        await activity.note(request, "imported", detail="chat")
        return view
