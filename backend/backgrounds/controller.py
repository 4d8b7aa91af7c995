"""Backgrounds of chats and characters: `/backgrounds`, `/chats/{chat_id}/background` and others."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromQuery, PathParameter

from backend.accounts.auth.identity import Identity
from backend.backgrounds.errors import BackgroundNotFoundError
from backend.backgrounds.service import BackgroundHolder, BackgroundItem, BackgroundService
from backend.characters.errors import CharacterNotFoundError, ImageError
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    ImageOperation,
    make_picture_response,
    read_image,
)
from backend.chats.errors import ChatNotFoundError
from backend.errors import AppError
from backend.http.schemas import FILES, RAISES, AnyRequest, Page, PageSize


class BackgroundListController(Controller):
    """The chats and characters that have a background."""

    path = "/backgrounds"
    tags = ("Chats",)

    @get(summary="List backgrounds")
    async def list_backgrounds(
        self,
        identity: NamedDependency[Identity],
        backgrounds: NamedDependency[BackgroundService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[BackgroundItem]:
        """List the backgrounds of all chats and characters, newest first, without the pictures.

        A chat without one can show that of its first character.
        """
        return await backgrounds.list_page(identity, limit=limit, after=after)


def build_background_controller(
    kind: BackgroundHolder, not_found: type[AppError]
) -> type[Controller]:
    """Build the controller of the backgrounds of chats, or of characters."""

    class BackgroundController(Controller):
        path = f"/{kind}s/{{{kind}_id:uuid}}/background"
        tags = (f"{kind.title()}s",)

        @get(
            opt={RAISES: (not_found, BackgroundNotFoundError), FILES: ("image/webp",)},
            operation_id=f"get{kind.title()}Background",
            summary=f"Read a {kind}'s background",
            media_type="image/webp",
        )
        async def get_background(
            self,
            request: AnyRequest,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            backgrounds: NamedDependency[BackgroundService],
        ) -> Response[bytes]:
            """Return the picture, at most 2,560 pixels a side."""
            return make_picture_response(request, await backgrounds.read(identity, kind, holder_id))

        @put(
            status_code=204,
            opt={RAISES: (not_found, ImageError)},
            operation_id=f"put{kind.title()}Background",
            summary=f"Set a {kind}'s background",
            operation_class=ImageOperation,
            request_max_body_size=MAX_UPLOAD_BYTES,
        )
        async def put_background(
            self,
            request: AnyRequest,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            backgrounds: NamedDependency[BackgroundService],
        ) -> None:
            """Set the picture: a PNG, JPEG, WebP or GIF. It is encoded again without metadata."""
            await backgrounds.replace(identity, kind, holder_id, await read_image(request))

        @delete(
            opt={RAISES: (not_found, BackgroundNotFoundError)},
            operation_id=f"delete{kind.title()}Background",
            summary=f"Delete a {kind}'s background",
        )
        async def delete_background(
            self,
            holder_id: Annotated[UUID, PathParameter(name=f"{kind}_id")],
            identity: NamedDependency[Identity],
            backgrounds: NamedDependency[BackgroundService],
        ) -> None:
            """Delete the picture."""
            await backgrounds.remove(identity, kind, holder_id)

    return BackgroundController


BACKGROUND_CONTROLLERS = (
    BackgroundListController,
    build_background_controller("chat", ChatNotFoundError),
    build_background_controller("character", CharacterNotFoundError),
)
