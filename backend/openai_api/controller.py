"""Routes of the OpenAI-compatible endpoint: `/v1`."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.sessions import SessionWatch
from backend.chats.errors import ChatNotFoundError, MessageTooLongError
from backend.context.budget import ContextOverflowError
from backend.core.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.generation.model import ModelError
from backend.generation.registry import NoEmbeddingsError, UnknownModelError
from backend.http.connections import ServerStoppingError
from backend.http.schemas import (
    BEGINS_TURN,
    BODY,
    CHUNKS,
    EXAMPLE,
    RAISES,
    STORES,
    AnyRequest,
)
from backend.openai_api.delivery import CompletionResponse
from backend.openai_api.embeddings import (
    DimensionsNotTakenError,
    EmbeddingInputError,
    NoEmbeddingModelError,
    render_vectors,
)
from backend.openai_api.errors import (
    ChatCompletionsOnlyError,
    InvalidParameterError,
    ModelNameNotFoundError,
)
from backend.openai_api.model_names import ModelNames
from backend.openai_api.options import parse_options
from backend.openai_api.protocols import (
    ChatCompletionStarter,
    EmbeddingMaker,
    TextCompletionStarter,
)
from backend.openai_api.schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    EmbeddingList,
    ModelEntry,
    ModelList,
    TextCompletion,
)
from backend.openai_api.streaming import CompletionReply, ReplyForm, ReplyHead
from backend.openai_api.wire import (
    MAX_BODY_BYTES,
    ChatCompletionBody,
    EmbeddingBody,
    SampledRequest,
    TextCompletionBody,
    parse_chat_request,
    parse_embedding_request,
    parse_text_request,
)

RequestT = TypeVar("RequestT")

_BYTES_PER_CHARACTER = 50
"""Bytes that are parsed in the time of counting one character's tokens."""

_ID_PREFIXES: Mapping[ReplyForm, str] = {"chat": "chatcmpl-", "text": "cmpl-"}

_REPLY_ERRORS = (
    InvalidParameterError,
    ModelNameNotFoundError,
    ServerStoppingError,
    ModelError,
)


class ModelNameController(Controller):
    """The names that `model` accepts."""

    path = "/models"
    tags = ("OpenAI-compatible",)

    @get(operation_id="listModelNames", summary="List model names")
    async def list_names(
        self, identity: NamedDependency[Identity], model_names: NamedDependency[ModelNames]
    ) -> ModelList:
        """Characters, campaigns, the newest chats, and the models of the account."""
        return ModelList(data=await model_names.list_entries(identity))

    @get(
        "/{name:path}",
        opt={RAISES: (ModelNameNotFoundError,)},
        operation_id="getModelName",
        summary="Read a model name",
    )
    async def get_name(
        self,
        name: FromPath[Path],
        identity: NamedDependency[Identity],
        model_names: NamedDependency[ModelNames],
    ) -> ModelEntry:
        """Return one of the names. An id works like a slug."""
        return await model_names.find_entry(identity, name.as_posix().removeprefix("/"))


class CompletionController(Controller):
    """Chat completions and text completions."""

    tags = ("OpenAI-compatible",)

    @post(
        "/chat/completions",
        status_code=200,
        request_max_body_size=MAX_BODY_BYTES,
        responses={
            200: ResponseSpec(ChatCompletion, generate_examples=False, description="The reply")
        },
        opt={
            RAISES: (*_REPLY_ERRORS, ChatNotFoundError, MessageTooLongError, ContextOverflowError),
            BEGINS_TURN: True,
            BODY: ChatCompletionBody,
            CHUNKS: ChatCompletionChunk,
            EXAMPLE: {
                "model": "character:marlena",
                "messages": [{"role": "user", "content": "Is anyone there?"}],
                "stream": True,
            },
        },
        summary="Create a chat completion",
    )
    async def create_chat_completion(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        cpu_pool: NamedDependency[CpuPool],
        watch: NamedDependency[SessionWatch],
        chat_completions: NamedDependency[ChatCompletionStarter],
    ) -> Response[Any]:
        """Write a reply of a model, a character, a chat or a campaign.

        With `stream` the response is a stream of chunks that ends with `data: [DONE]`. A plain
        model stores nothing. Other names store the conversation in a chat, and add lore and memory.
        Closing the connection stops the reply, and keeps its text. docs/reference/clients.md
        describes the headers `X-Talekeeper-*`.
        """
        options = parse_options(request.headers)
        parsed = await _parse(request, parse_chat_request, cpu_pool, identity)
        reply = await chat_completions.start(identity, parsed, options)
        return _respond(reply, "chat", parsed, identity, watch)

    @post(
        "/completions",
        status_code=200,
        responses={
            200: ResponseSpec(TextCompletion, generate_examples=False, description="The texts")
        },
        opt={
            RAISES: (*_REPLY_ERRORS, ChatCompletionsOnlyError),
            BEGINS_TURN: True,
            STORES: False,
            BODY: TextCompletionBody,
            CHUNKS: TextCompletion,
            EXAMPLE: {"model": "demo", "prompt": "The door creaks open."},
        },
        operation_id="createCompletion",
        summary="Continue a text",
    )
    async def create_completion(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        cpu_pool: NamedDependency[CpuPool],
        watch: NamedDependency[SessionWatch],
        text_completions: NamedDependency[TextCompletionStarter],
    ) -> Response[Any]:
        """Continue texts with a plain model. Nothing is stored."""
        parsed = await _parse(request, parse_text_request, cpu_pool, identity)
        reply = await text_completions.start(identity, parsed)
        return _respond(reply, "text", parsed, identity, watch)


class EmbeddingController(Controller):
    """Vectors of texts."""

    path = "/embeddings"
    tags = ("OpenAI-compatible",)

    @post(
        status_code=200,
        responses={
            200: ResponseSpec(EmbeddingList, generate_examples=False, description="The vectors")
        },
        opt={
            RAISES: (
                InvalidParameterError,
                DimensionsNotTakenError,
                EmbeddingInputError,
                NoEmbeddingModelError,
                UnknownModelError,
                NoEmbeddingsError,
                ModelError,
            ),
            STORES: False,
            BODY: EmbeddingBody,
            EXAMPLE: {"model": "gemini/gemini-embedding-001", "input": "The door creaks open."},
        },
        operation_id="createEmbeddings",
        summary="Embed texts",
    )
    async def create_embeddings(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        cpu_pool: NamedDependency[CpuPool],
        text_embedder: NamedDependency[EmbeddingMaker],
    ) -> Response[Any]:
        """Return the vectors of texts.

        `model` is `default` for the account's or the installation's embedding model, or that of a
        provider, `<provider>/<model>`.
        """
        parsed = await _parse(request, parse_embedding_request, cpu_pool, identity)
        found = await text_embedder.embed(
            identity, parsed.model, parsed.texts, dimensions=parsed.dimensions
        )
        body = await cpu_pool.run(
            identity.user_id,
            partial(render_vectors, found, "base64" if parsed.is_base64 else "float"),
            size=found.vectors.size,
        )
        return Response(body, media_type="application/json")


async def _parse(
    request: AnyRequest,
    parse: Callable[[bytes], RequestT],
    pool: CpuPool,
    identity: Identity,
) -> RequestT:
    data = await request.body()
    return await pool.run(
        identity.user_id, partial(parse, data), size=len(data) // _BYTES_PER_CHARACTER
    )


def _respond(
    reply: CompletionReply,
    form: ReplyForm,
    parsed: SampledRequest,
    identity: Identity,
    watch: SessionWatch,
) -> Response[Any]:
    head = ReplyHead(
        id=_ID_PREFIXES[form] + new_id().hex,
        created=int(time.time()),
        model=parsed.model,
        form=form,
    )
    return CompletionResponse(
        reply,
        head,
        identity,
        watch,
        is_stream=parsed.is_stream,
        with_usage=parsed.with_usage,
    )
