"""`POST /tokens`: how much of a budget a text takes."""

import asyncio
from typing import Annotated

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from backend.accounts.door import NEEDS
from backend.accounts.identity import Identity
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry, UnknownModelError
from backend.generation.tokens import best_tokenizer, get_tokenizer
from backend.turns.errors import TooManyTurnsError
from backend.turns.gate import Gate
from backend.turns.models import TokenRatio
from backend.turns.ratios import ratio_key, ratio_of
from backend.wire import EXAMPLE, RAISES

MAX_TEXTS = 100
MAX_CHARACTERS = 200_000
"""What the longest field of a card or of the settings may have."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""About a second's work for the slowest vocabulary."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_CHARACTERS)]


class CountTokens(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to count, and for which model; the account's where none is named."""

    texts: Annotated[list[Text], msgspec.Meta(max_length=MAX_TEXTS)]
    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class TokenCounts(msgspec.Struct, kw_only=True):
    """Tokens of each text, in the order of the texts.

    `tokenizer` is the vocabulary that counted them. Where it is not the model's own, the counts are
    scaled by what is known of that model.
    """

    counts: list[int]
    tokenizer: str


class TokenController(Controller):
    """Counting tokens."""

    path = "/tokens"
    tags = ("Models",)
    request_max_body_size = MAX_BODY_BYTES

    @post(
        status_code=200,
        opt={
            NEEDS: "read",
            RAISES: (UnknownModelError, TooManyTurnsError),
            EXAMPLE: {"texts": ["The door creaks open.", ""]},
        },
        operation_id="countTokens",
        summary="Count tokens",
    )
    async def count_tokens(
        self,
        data: JSONBody[CountTokens],
        identity: NamedDependency[Identity],
        database: NamedDependency[Database],
        registry: NamedDependency[ModelRegistry],
        gate: NamedDependency[Gate],
    ) -> TokenCounts:
        """How many tokens texts are for a model. Nothing is sent anywhere, and nothing is kept."""
        spec = registry.spec(data.model or identity.settings.model or registry.default_id)
        name = best_tokenizer(spec.tokenizer)
        with gate.enter(identity.user_id):
            async with database.read() as session:
                ratio = ratio_of(await session.get(TokenRatio, ratio_key(spec, name)), spec, name)
            counted = await asyncio.to_thread(lambda: get_tokenizer(name).count_many(data.texts))
        return TokenCounts(counts=[round(count * ratio) for count in counted], tokenizer=name)


CONTROLLERS = (TokenController,)
