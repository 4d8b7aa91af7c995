"""`/providers`: the providers of models; `GET /provider-presets`: known services."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.errors import ForbiddenError, PreconditionFailedError
from backend.generation.client.network import AddressRefusedError
from backend.http.schemas import EXAMPLE, PATCHES, PREVIEWS, RAISES, STORES, IfMatch, Page, tag_body
from backend.llm.models import ProviderFields
from backend.llm.providers.schemas import NewProvider, ProviderPreset, ProviderView, find_presets
from backend.llm.providers.service import (
    ProviderNotFoundError,
    ProviderService,
    SlugTakenError,
    TooManyProvidersError,
)
from backend.llm.providers.trials import (
    NewProviderTest,
    ProviderListing,
    ProviderTest,
    ProviderTested,
    ProviderTests,
)
from backend.llm.user_models import UserModels

MAX_BODY_BYTES = 256 * 1024


class ProviderPresetController(Controller):
    """Services that providers can be made for."""

    path = "/provider-presets"
    tags = ("Providers",)

    @get(summary="List services")
    async def list_provider_presets(
        self, user_models: NamedDependency[UserModels]
    ) -> Page[ProviderPreset]:
        """Known services and programs, with their addresses and the pages where users get keys."""
        return Page(items=list(find_presets(user_models.network).values()))


class ProviderController(Controller):
    """Providers of models."""

    path = "/providers"
    tags = ("Providers",)
    request_max_body_size = MAX_BODY_BYTES

    @get(summary="List providers")
    async def list_providers(
        self, identity: NamedDependency[Identity], providers: NamedDependency[ProviderService]
    ) -> Page[ProviderView]:
        """All providers: the account's, then the installation's, then the environment's.

        No response contains a key.
        """
        return Page(items=await providers.list_all(identity))

    @post(
        opt={
            NEEDS: "manage",
            RAISES: (SlugTakenError, TooManyProvidersError, ForbiddenError, AddressRefusedError),
            EXAMPLE: {"preset": "ollama", "models": [{"name": "llama3.2"}]},
        },
        summary="Add a provider",
    )
    async def create_provider(
        self,
        data: JSONBody[NewProvider],
        identity: NamedDependency[Identity],
        providers: NamedDependency[ProviderService],
    ) -> Response[ProviderView]:
        """Add a provider. Its models are available immediately. Its server gets no request."""
        return _respond(await providers.create(identity, data))

    @post(
        "/test",
        status_code=200,
        opt={
            NEEDS: "manage",
            STORES: False,
            PREVIEWS: True,
            RAISES: (SlugTakenError, TooManyProvidersError, ForbiddenError, AddressRefusedError),
            EXAMPLE: {"preset": "ollama", "model": "llama3.2"},
        },
        summary="Test a new provider",
    )
    async def test_new_provider(
        self,
        data: JSONBody[NewProviderTest],
        identity: NamedDependency[Identity],
        provider_tests: NamedDependency[ProviderTests],
    ) -> ProviderTested:
        """Test a provider before it is added. Nothing is stored.

        Its server lists its models, and one of them begins a reply.
        """
        return await provider_tests.test_new(identity, data)

    @get("/{provider_id:uuid}", opt={RAISES: (ProviderNotFoundError,)}, summary="Read a provider")
    async def get_provider(
        self,
        provider_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        providers: NamedDependency[ProviderService],
    ) -> Response[ProviderView]:
        """A provider."""
        return _respond(await providers.get(identity, provider_id))

    @patch(
        "/{provider_id:uuid}",
        opt={
            NEEDS: "manage",
            RAISES: (ProviderNotFoundError, PreconditionFailedError, AddressRefusedError),
            PATCHES: ProviderFields,
        },
        summary="Change a provider",
    )
    async def patch_provider(
        self,
        provider_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        providers: NamedDependency[ProviderService],
        if_match: IfMatch = None,
    ) -> Response[ProviderView]:
        """Merge a patch into a provider. Absent fields stay. Null removes a key or a header."""
        return _respond(await providers.patch(identity, provider_id, data, if_match=if_match))

    @delete(
        "/{provider_id:uuid}",
        opt={
            NEEDS: "manage",
            STORES: False,
            RAISES: (ProviderNotFoundError, PreconditionFailedError),
        },
        summary="Delete a provider",
    )
    async def delete_provider(
        self,
        provider_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        providers: NamedDependency[ProviderService],
        if_match: IfMatch = None,
    ) -> None:
        """Delete a provider and its key. Chats that use its models need other ones."""
        await providers.delete(identity, provider_id, if_match=if_match)

    @get(
        "/{provider_id:uuid}/models",
        opt={RAISES: (ProviderNotFoundError,)},
        summary="List a provider's models",
    )
    async def list_provider_models(
        self,
        provider_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        provider_tests: NamedDependency[ProviderTests],
        refresh: FromQuery[bool] = True,  # noqa: FBT002  # a parameter of the query
    ) -> ProviderListing:
        """The models that its server lists now, with figures, or those that it listed last.

        If it does not respond, `problem` is the reason. With `refresh=false`, it gets no request.
        """
        return await provider_tests.listing(identity, provider_id, refresh=refresh)

    @post(
        "/{provider_id:uuid}/test",
        status_code=200,
        opt={NEEDS: "manage", PREVIEWS: True, RAISES: (ProviderNotFoundError,)},
        summary="Test a provider",
    )
    async def test_provider(
        self,
        provider_id: FromPath[UUID],
        data: JSONBody[ProviderTest],
        identity: NamedDependency[Identity],
        provider_tests: NamedDependency[ProviderTests],
    ) -> ProviderTested:
        """Load the list of models from its server, store it, and let one of them begin a reply."""
        return await provider_tests.test(identity, provider_id, data)


def _respond(view: ProviderView) -> Response[ProviderView]:
    return tag_body(view, view.revision or 0)
