"""The models that an account uses, with their tasks: `GET /models/in-use`."""

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from sqlalchemy import func, select

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import UserSettings
from backend.chats.models import Chat
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.database.engine import Database
from backend.enrichment.reader import ModelTask, choose_model
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.http.schemas import Page
from backend.llm.user_models import UserModels
from backend.settings import Settings
from backend.turns.models import Turn

MAX_CHATS = 50
"""The chats with the latest turns. Models of older chats are not listed."""

Use = Literal["reply", "triage", "agent", "summary", "suggestions", "compaction", "embedding"]
_TASKS: tuple[ModelTask, ...] = get_args(ModelTask)


class ModelInUse(msgspec.Struct, kw_only=True):
    """A model that the account's settings or its latest chats use, with its tasks.

    `title` and `provider_name` are null if the model is no longer available. `chats` is the number
    of latest chats that use it.
    """

    id: str
    title: str | None
    provider_name: str | None
    uses: list[Use]
    chats: int


class ModelsInUseService:
    def __init__(self, database: Database, user_models: UserModels, settings: Settings) -> None:
        self._database = database
        self._user_models = user_models
        self._settings = settings

    async def list_all(self, identity: Identity) -> list[ModelInUse]:
        """Return the models in use, the account's reply model first."""
        latest = (
            select(Turn.chat_id)
            .where(Turn.user_id == identity.user_id)
            .group_by(Turn.chat_id)
            .order_by(func.max(Turn.created_at).desc())
            .limit(MAX_CHATS)
            .subquery()
        )
        query = (
            select(Chat)
            .join(latest, latest.c.chat_id == Chat.id)
            .where(Chat.user_id == identity.user_id, Chat.is_ready)
        )
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
            chats = list(await session.scalars(query))
        account = identity.settings
        uses: dict[str, set[Use]] = {}
        count: dict[str, int] = {}
        for model_id, use in _list_account_uses(models, account):
            uses.setdefault(model_id, set()).add(use)
        for chat in chats:
            own = read_settings(identity.sealer, chat)
            asked = list(self._chat_uses(models, chat, own, account))
            for model_id, use in asked:
                uses.setdefault(model_id, set()).add(use)
            for model_id in {model_id for model_id, _ in asked}:
                count[model_id] = count.get(model_id, 0) + 1
        return [
            _view_model(models, model_id, found, chats=count.get(model_id, 0))
            for model_id, found in uses.items()
        ]

    def _chat_uses(
        self, models: ModelRegistry, chat: Chat, own: ChatSettings, account: UserSettings
    ) -> Iterator[tuple[str, Use]]:
        """Yield the models of a chat with their tasks."""
        reply = own.model or account.model or models.default_id
        yield reply, "reply"
        is_session = chat.campaign_id is not None
        does: dict[ModelTask, bool] = {
            "triage": chat.chronicle_enabled,
            "agent": chat.chronicle_enabled,
            "summary": own.summary.enabled or is_session,
            "compaction": is_session,
            "suggestions": own.task_models.suggestions is not None,
        }
        for task, is_done in does.items():
            if is_done:
                yield choose_model(models, self._settings, task, own, account, reply), task


def _list_account_uses(models: ModelRegistry, account: UserSettings) -> Iterator[tuple[str, Use]]:
    """Yield the models of the account's settings with their tasks."""
    yield account.model or models.default_id, "reply"
    for task in _TASKS:
        usual = None if task == "suggestions" else account.enrichment.model
        if (named := getattr(account.task_models, task) or usual) is not None:
            yield named, task
    if account.task_models.embedding is not None:
        yield account.task_models.embedding, "embedding"


def _view_model(models: ModelRegistry, model_id: str, uses: set[Use], *, chats: int) -> ModelInUse:
    title = provider_name = None
    try:
        spec = models.spec(model_id)
        title, provider_name = spec.title, spec.provider_name
    except UnknownModelError:
        # The provider of an embedding model is known even if the model is not in its list.
        slug, _, name = model_id.partition("/")
        if "embedding" in uses and slug in models.providers:
            title, provider_name = name, models.providers[slug].name
    return ModelInUse(
        id=model_id,
        title=title,
        provider_name=provider_name,
        uses=sorted(uses, key=get_args(Use).index),
        chats=chats,
    )


class ModelsInUseController(Controller):
    """The models that an account uses."""

    path = "/models/in-use"
    tags = ("Models",)

    @get(summary="List models in use")
    async def list_models_in_use(
        self,
        identity: NamedDependency[Identity],
        models_in_use: NamedDependency[ModelsInUseService],
    ) -> Page[ModelInUse]:
        """List the models of the account and of its latest 50 chats, with their tasks."""
        return Page(items=await models_in_use.list_all(identity))
