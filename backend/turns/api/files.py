"""Files of messages: upload a picture for the next line, and read a file of a message."""

from functools import partial
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.auth.identity import Identity
from backend.characters.card_rows import format_disposition
from backend.characters.errors import ImageError
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    Upload,
    read_upload,
)
from backend.chats.errors import ChatNotFoundError, StoredFileNotFoundError
from backend.chats.files import (
    WAIT_DURATION,
    FileDescription,
    SealedFile,
    delete_unused_files,
    open_description,
    seal_file,
    store_upload,
)
from backend.chats.models import FILE_DATA, StoredFile
from backend.chats.repository import get_chat
from backend.chats.service import read_settings
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.core.files import file_stem
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import BadRequestError, UnsupportedMediaTypeError
from backend.generation.images import IMAGE_TOKENS, IMAGE_TYPES
from backend.generation.registry import UnknownModelError
from backend.generation.tokens import choose_tokenizer
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    FILES,
    RAISES,
    AnyRequest,
    is_current,
    make_unchanged,
)
from backend.llm.token_ratios import load_ratio
from backend.llm.user_models import UserModels
from backend.quotas.service import CheckAdded
from backend.vault.sealing import Sealer

FALLBACK_NAME = "picture"


class UploadedPicture(msgspec.Struct, kw_only=True):
    """A picture that waits 24 hours for a message, in the form that models get.

    `size` is in bytes, `width` and `height` are in pixels. `tokens` is an estimate for the chat's
    model, or 0 if the model cannot read pictures.
    """

    id: UUID
    name: str
    media_type: str
    size: int
    width: int
    height: int
    tokens: int


class FileService:
    """Stores and reads files of messages. `check_added` can refuse a file."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        user_models: UserModels,
        *,
        check_added: CheckAdded,
    ) -> None:
        self._database = database
        self._pool = pool
        self._user_models = user_models
        self._check_added = check_added

    async def estimate_tokens(self, identity: Identity, chat_id: UUID) -> int:
        """Return the tokens of a picture for the model of a chat, or 0 if it reads none.

        Raises `ChatNotFoundError`.
        """
        async with self._database.read() as session:
            chat = await get_chat(session, chat_id, owner_id=identity.user_id)
            models = await self._user_models.of(session, identity.user, identity.sealer)
            chosen = read_settings(identity.sealer, chat).model or identity.settings.model
            try:
                spec = models.spec(chosen or models.default_id)
            except UnknownModelError:
                return IMAGE_TOKENS
            if spec.image_support == "none":
                return 0
            tokenizer = choose_tokenizer(spec.tokenizer)
            ratio = await load_ratio(session, identity.user_id, spec, tokenizer)
        return round(IMAGE_TOKENS * ratio)

    async def upload(
        self, identity: Identity, chat_id: UUID, upload: Upload, *, tokens: int
    ) -> UploadedPicture:
        """Store a picture for the next line of a chat.

        Raises `ChatNotFoundError`, `ImageError`, `TooLargeError`, `StorageQuotaExceededError`.
        """
        file, description = await self._pool.run(
            identity.user_id, partial(_seal_picture, identity.sealer, upload)
        )
        async with self._database.write() as session:
            await get_chat(session, chat_id, owner_id=identity.user_id)
            await delete_unused_files(session, identity.user_id)
            file_id = await store_upload(
                session, identity.sealer, file, description, until=now() + WAIT_DURATION
            )
            await self._check_added(session, identity.user_id)
        return UploadedPicture(
            id=file_id,
            name=description.name,
            media_type=description.media_type,
            size=description.size,
            width=description.width or 0,
            height=description.height or 0,
            tokens=tokens,
        )

    async def find(self, identity: Identity, file_id: UUID) -> FileDescription:
        """Return the description of a file. Raises `StoredFileNotFoundError`."""
        sealed = await self._load(identity, file_id, StoredFile.sealed_description)
        return open_description(identity.sealer, file_id, sealed)

    async def read(self, identity: Identity, file_id: UUID) -> bytes:
        """Return the content of a file. Raises `StoredFileNotFoundError`."""
        sealed = await self._load(identity, file_id, StoredFile.sealed_data)
        return await self._pool.run(
            identity.user_id,
            partial(identity.sealer.open_bytes, FILE_DATA, file_id, sealed),
            size=len(sealed) // SEALED_FACTOR,
        )

    async def _load(
        self, identity: Identity, file_id: UUID, column: InstrumentedAttribute[bytes]
    ) -> bytes:
        query = select(column).where(
            StoredFile.id == file_id, StoredFile.user_id == identity.user_id
        )
        async with self._database.read() as session:
            found = await session.scalar(query)
        if found is None:
            raise StoredFileNotFoundError
        return found


def _seal_picture(sealer: Sealer, upload: Upload) -> tuple[SealedFile, FileDescription]:
    """Encode a picture again and seal it. CPU-bound. Raises `ImageError`, `TooLargeError`."""
    from backend.characters.pictures import reencode_picture  # noqa: PLC0415  # imports Pillow

    picture = reencode_picture(upload.data)
    description = FileDescription(
        media_type=picture.media_type,
        size=len(picture.data),
        width=picture.width,
        height=picture.height,
    )
    stem = file_stem(upload.filename.rpartition(".")[0] or upload.filename, fallback=FALLBACK_NAME)
    description = msgspec.structs.replace(description, name=f"{stem}{description.extension}")
    return seal_file(sealer, picture.data, description=description), description


class ChatFileController(Controller):
    """`POST /chats/{chat_id}/files`: upload a picture for the next line."""

    path = "/chats/{chat_id:uuid}/files"
    tags = ("Chats",)

    @post(
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (ChatNotFoundError, ImageError, BadRequestError, UnsupportedMediaTypeError),
        },
        summary="Upload a picture",
        operation_class=FileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def upload_picture(
        self,
        request: AnyRequest,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        message_files: NamedDependency[FileService],
    ) -> UploadedPicture:
        """Upload a PNG, JPEG, WebP or GIF for the next line. It is encoded again without metadata.

        Send its id in `files` of the turn within 24 hours.
        """
        # Also finds out if the chat exists, before the body is read.
        tokens = await message_files.estimate_tokens(identity, chat_id)
        upload = await read_upload(request)
        return await message_files.upload(identity, chat_id, upload, tokens=tokens)


class FileController(Controller):
    """`GET /files/{file_id}`: read a file of a message."""

    path = "/files/{file_id:uuid}"
    tags = ("Chats",)

    @get(
        opt={RAISES: (StoredFileNotFoundError,), FILES: IMAGE_TYPES},
        summary="Read a file of a message",
        media_type="image/png",
    )
    async def get_file(
        self,
        request: AnyRequest,
        file_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        message_files: NamedDependency[FileService],
    ) -> Response[bytes]:
        """Return a picture, or another file of an imported message as a download."""
        about = await message_files.find(identity, file_id)
        tag = f'"{file_id.hex}"'
        headers = {
            "ETag": tag,
            "Cache-Control": "private, no-cache",
            "X-Content-Type-Options": "nosniff",
        }
        if is_current(request.headers.get("if-none-match"), tag):
            return make_unchanged(headers)
        stem, _, _ = about.name.rpartition(".")
        disposition = format_disposition(
            stem, about.extension.removeprefix("."), fallback=FALLBACK_NAME
        )
        if about.media_type in IMAGE_TYPES:
            disposition = disposition.replace("attachment", "inline", 1)
        headers["Content-Disposition"] = disposition
        data = await message_files.read(identity, file_id)
        return Response(data, media_type=about.media_type, headers=headers)
