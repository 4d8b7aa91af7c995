"""`GET /providers/local`: model servers that run on this machine."""

import asyncio
from collections.abc import Sequence
from itertools import islice

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.profile.administration import require_administrator
from backend.errors import AppError
from backend.generation.client.client import ModelClient, ServerError, make_http_client
from backend.generation.client.network import serves_only_this_machine
from backend.generation.json_text import mapping, sequence
from backend.http.schemas import Page
from backend.llm.providers.schemas import ProviderPreset, find_presets
from backend.llm.providers.service import ProviderService
from backend.llm.user_models import UserModels
from backend.settings import Settings

PROGRAMS = ("ollama", "lm-studio", "llama-cpp", "koboldcpp")
"""The presets of programs that are looked for, at their usual ports."""

CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 1.5
MAX_MODELS = 50


class LocalServer(msgspec.Struct, kw_only=True):
    """A model server on this machine, and its first 50 models.

    `is_used` is true if a provider of the account or of the installation has its address.
    """

    preset: str
    title: str
    base_url: str
    models: list[str]
    is_used: bool


class LocalServers:
    """Finds model servers that run on this machine.

    Only a server that listens on loopback looks for them: elsewhere "this machine" is not the
    user's. The requests have no key and no text.
    """

    def __init__(
        self, providers: ProviderService, user_models: UserModels, settings: Settings
    ) -> None:
        self._providers = providers
        self._network = user_models.network
        self._is_near = serves_only_this_machine(settings)

    async def find(self, identity: Identity) -> list[LocalServer]:
        """Return the servers that list their models, in the order of the programs."""
        if not self._is_near:
            return []
        known = find_presets(self._network)
        used = {each.base_url for each in await self._providers.list_all(identity)}
        async with make_http_client(
            connect_timeout=CONNECT_SECONDS, headers={}, network=self._network
        ) as http:
            client = ModelClient(http)
            presets = [known[name] for name in PROGRAMS]
            found = await asyncio.gather(*(_list_models(client, each) for each in presets))
        return [
            LocalServer(
                preset=preset.name,
                title=preset.title,
                base_url=preset.base_url or "",
                models=list(models),
                is_used=preset.base_url in used,
            )
            for preset, models in zip(presets, found, strict=True)
            if models is not None
        ]


async def _list_models(client: ModelClient, preset: ProviderPreset) -> Sequence[str] | None:
    """Return the names of a server's models. None if no server of this kind responds."""
    import httpx2  # noqa: PLC0415 - slow at start-up

    if preset.taken_port is not None:
        return None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = mapping(await client.get(f"{preset.base_url}/models"))
    except (httpx2.HTTPError, TimeoutError, ServerError, AppError):
        return None
    if "data" not in answer:
        return None
    names = (mapping(each).get("id") for each in sequence(answer["data"]))
    return list(islice((name for name in names if isinstance(name, str)), MAX_MODELS))


class LocalServerController(Controller):
    """Model servers on this machine, for administrators."""

    path = "/providers/local"
    tags = ("Providers",)
    guards = (require_administrator,)
    opt = {NEEDS: "manage"}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="Find local model servers")
    async def list_local_servers(
        self, identity: NamedDependency[Identity], local_servers: NamedDependency[LocalServers]
    ) -> Page[LocalServer]:
        """List model servers at their usual ports on this machine.

        The list is empty unless this server listens only on loopback. Nothing is stored.
        """
        return Page(items=await local_servers.find(identity))
