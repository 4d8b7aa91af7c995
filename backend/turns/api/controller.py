"""Routes of turns and contexts: `/chats/{chat_id}/turns`, `/turns`, `/messages/{id}/context`."""

from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.middleware import NEEDS
from backend.accounts.auth.sessions import SessionWatch
from backend.characters.errors import CharacterNotFoundError
from backend.chats.errors import (
    ChatNotFoundError,
    EmptyMessageError,
    MemberAbsentError,
    MessageNotFoundError,
    MessageTooLongError,
    NobodyPresentError,
    UnknownFileError,
)
from backend.context.budget import ContextOverflowError
from backend.context.macros import MacroLimitError
from backend.context.record import RecordError
from backend.core.audience import ViewpointText
from backend.generation.model import ModelError
from backend.generation.registry import UnknownModelError
from backend.generation.sampling import SettingNotTakenError
from backend.http.connections import ServerStoppingError
from backend.http.schemas import (
    BEGINS_TURN,
    COMMON_RAISES,
    EXAMPLE,
    PREVIEWS,
    RAISES,
    STORES,
    STREAMS,
    AnyRequest,
    Page,
    PageSize,
)
from backend.llm.server_slots import ModelBusyError
from backend.lorebooks.errors import LorebookNotFoundError
from backend.turns.api.lore_tester import LoreTest, LoreTester, LoreTestRequest
from backend.turns.api.schemas import (
    ChoiceRequest,
    ContextRequest,
    ContextView,
    SuggestionRequest,
    Suggestions,
    TurnRequest,
    TurnView,
)
from backend.turns.api.service import TurnService
from backend.turns.api.streaming import make_response, read_last_event_id, stream_events
from backend.turns.api.suggestions import SuggestionService
from backend.turns.errors import (
    ChatChangedError,
    ChoiceMadeError,
    ContextNotFoundError,
    NoSpeakerError,
    NotContinuableError,
    NothingToAnswerError,
    SpeakerNeededError,
    TurnIdReusedError,
    TurnInProgressError,
    TurnNotFoundError,
    TurnNotWaitingError,
    TurnWaitingError,
)
from backend.turns.models import TurnState
from backend.turns.prompt.preview import ContextService
from backend.turns.run.events import EVENTS, EventPlace

PROMPT_ERRORS = (
    ChatNotFoundError,
    MessageNotFoundError,
    CharacterNotFoundError,
    NothingToAnswerError,
    NotContinuableError,
    MemberAbsentError,
    NobodyPresentError,
    NoSpeakerError,
    SpeakerNeededError,
    ContextOverflowError,
    MacroLimitError,
    UnknownFileError,
    UnknownModelError,
    SettingNotTakenError,
)
"""Errors that building a prompt can raise."""


class TurnController(Controller):
    """`POST /chats/{chat_id}/turns`: send a line, receive the reply as server-sent events."""

    path = "/chats/{chat_id:uuid}"
    tags = ("Turns",)

    @post(
        "/turns",
        status_code=200,
        responses={
            200: ResponseSpec(TurnView, generate_examples=False, description="Events, or the turn")
        },
        opt={
            RAISES: (
                *PROMPT_ERRORS,
                MessageTooLongError,
                EmptyMessageError,
                TurnInProgressError,
                TurnWaitingError,
                TurnIdReusedError,
                ChatChangedError,
                ServerStoppingError,
            ),
            BEGINS_TURN: True,
            STREAMS: EVENTS,
            EXAMPLE: {"text": "Is anyone there?"},
        },
        summary="Start a turn",
    )
    async def take_turn(
        self,
        request: AnyRequest,
        chat_id: FromPath[UUID],
        data: JSONBody[TurnRequest],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
        watch: NamedDependency[SessionWatch],
    ) -> Response[Any]:
        """Send a line and stream the reply as server-sent events.

        With `Accept: application/json` the response is the turn once it has ended or waits for its
        player. The turn continues if the client disconnects. Continue the stream at
        `/turns/{turn_id}/events`. With `auto_replies`, the replies that follow by themselves belong
        to the stream, and to the JSON as `following`.
        """
        turn_id = await turns.take(identity, chat_id, data)
        return await make_response(request, turns, watch, identity, turn_id, last=EventPlace())

    @get("/turns", opt={RAISES: (ChatNotFoundError,)}, summary="List turns")
    async def list_turns(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
        limit: PageSize = 20,
        after: FromQuery[UUID | None] = None,
        in_state: Annotated[TurnState | None, QueryParameter(name="state")] = None,
    ) -> Page[TurnView]:
        """List turns of a chat, newest first, in any or one state. `text` and `reply` are null."""
        items = await turns.list_turns(
            identity, chat_id, state=in_state, after=after, limit=limit + 1
        )
        more = len(items) > limit
        return Page(items=items[:limit], next=str(items[limit - 1].id) if more else None)

    @post(
        "/suggestions",
        status_code=200,
        opt={
            STORES: False,
            BEGINS_TURN: True,
            RAISES: (
                *PROMPT_ERRORS,
                ModelError,
                ModelBusyError,
                ChatChangedError,
                ServerStoppingError,
            ),
        },
        summary="Suggest next lines",
    )
    async def suggest(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        suggestions: NamedDependency[SuggestionService],
        data: JSONBody[SuggestionRequest | None] = None,
    ) -> Suggestions:
        """Suggest two to four lines for the user.

        They are not stored, but their tokens are counted.

        Turns come first. Suggestions wait if the model's server answers one request at a time.
        """
        return await suggestions.suggest(identity, chat_id, data or SuggestionRequest())

    @get(
        "/context",
        opt={PREVIEWS: True, RAISES: (*PROMPT_ERRORS, MessageTooLongError)},
        operation_id="previewContext",
        summary="Preview the context",
    )
    async def preview(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        contexts: NamedDependency[ContextService],
        text: FromQuery[str | None] = None,
        prompt: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
        viewpoint: FromQuery[ViewpointText | None] = None,
        speaker: FromQuery[UUID | None] = None,
    ) -> ContextView:
        """Return the items of the next turn's prompt and the reasons for them. Asks no model.

        `prompt=true` adds the prompt. The prompt contains only the knowledge of `viewpoint`.
        `speaker` is the character that replies. Without it, the preview of a group shows one that
        may be chosen.
        """
        request = ContextRequest(text=text, prompt=prompt, viewpoint=viewpoint, speaker=speaker)
        return await contexts.preview(identity, chat_id, request)

    @post(
        "/context",
        status_code=200,
        opt={
            NEEDS: "read",
            PREVIEWS: True,
            RAISES: (*PROMPT_ERRORS, MessageTooLongError),
            EXAMPLE: {"text": "Is anyone there?", "budgets": {"history": 60_000}},
        },
        summary="Preview the context with other budgets",
    )
    async def try_context(
        self,
        chat_id: FromPath[UUID],
        data: JSONBody[ContextRequest],
        identity: NamedDependency[Identity],
        contexts: NamedDependency[ContextService],
    ) -> ContextView:
        """Return the context of the next turn, with a draft of any length and other budgets.

        Nothing is stored. `diff` adds the difference to the prompt of the last reply on the active
        path. It is null if that reply has no record.
        """
        return await contexts.preview(identity, chat_id, data)


class RunningTurnController(Controller):
    """Turns by id: read, follow, stop, choose."""

    path = "/turns/{turn_id:uuid}"
    tags = ("Turns",)
    opt = {COMMON_RAISES: (TurnNotFoundError,)}  # noqa: RUF012  # Litestar's own declaration

    @get(summary="Read a turn")
    async def get_turn(
        self,
        turn_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
    ) -> TurnView:
        """Return the state and the result of a turn."""
        return await turns.get(identity, turn_id)

    @get("/events", opt={STREAMS: EVENTS}, operation_id="followTurn", summary="Follow a turn")
    async def follow(
        self,
        request: AnyRequest,
        turn_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
        watch: NamedDependency[SessionWatch],
    ) -> Response[Any]:
        """Stream the events after `Last-Event-ID`, in whichever process the turn runs.

        The turns that follow it by themselves belong to the stream.
        """
        last = read_last_event_id(request)
        await turns.check_place(identity, turn_id, last)
        return stream_events(turns, watch, identity, turn_id, last=last)

    @post(
        "/stop",
        status_code=202,
        opt={
            NEEDS: "chat",
            STORES: False,
        },
        operation_id="stopTurn",
        summary="Stop a turn",
    )
    async def stop(
        self,
        turn_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
    ) -> None:
        """Stop a turn. Its text so far is kept.

        Of turns that follow each other by themselves, the running one is stopped, and no other
        follows.
        """
        await turns.stop(identity, turn_id)

    @post(
        "/choice",
        status_code=200,
        responses={
            200: ResponseSpec(TurnView, generate_examples=False, description="Events, or the turn")
        },
        opt={
            RAISES: (
                *PROMPT_ERRORS,
                TurnNotWaitingError,
                ChoiceMadeError,
                ChatChangedError,
                ServerStoppingError,
            ),
            BEGINS_TURN: True,
            STREAMS: EVENTS,
            EXAMPLE: {"option": "1.0"},
        },
        operation_id="choose",
        summary="Answer a waiting turn",
    )
    async def choose(
        self,
        request: AnyRequest,
        turn_id: FromPath[UUID],
        data: JSONBody[ChoiceRequest],
        identity: NamedDependency[Identity],
        turns: NamedDependency[TurnService],
        watch: NamedDependency[SessionWatch],
    ) -> Response[Any]:
        """Resume a waiting turn, and stream its events from the choice on.

        The choice takes effect at once, even if the turn is stopped later. The changes of the turn
        so far, the die and its costs belong to its reply. If the same choice is sent again, the
        same turn is followed. Another choice is refused. The player may answer a question in their
        own words. With `Accept: application/json` the response is the turn once it has ended or
        waits again.
        """
        last_id = await turns.choose(identity, turn_id, data)
        return await make_response(
            request, turns, watch, identity, turn_id, last=EventPlace(last_id)
        )


class MessageContextController(Controller):
    """Contexts of stored replies."""

    path = "/messages/{message_id:uuid}/context"
    tags = ("Turns",)

    @get(
        opt={RAISES: (MessageNotFoundError, ContextNotFoundError, RecordError)},
        summary="Read a reply's context",
    )
    async def get_context(
        self,
        message_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        contexts: NamedDependency[ContextService],
        diff: FromQuery[Literal["previous"] | None] = None,
    ) -> ContextView:
        """Return the items of a reply's prompt, the reasons for them, and the exact prompt.

        `diff=previous` adds the difference to the prompt of the reply before it.
        """
        return await contexts.read_stored(identity, message_id, with_difference=diff is not None)


class LoreTesterController(Controller):
    """Test lorebooks."""

    path = "/lorebooks/{lorebook_id:uuid}/test"
    tags = ("Lorebooks",)

    @post(
        status_code=200,
        opt={
            NEEDS: "read",
            PREVIEWS: True,
            RAISES: (
                LorebookNotFoundError,
                ChatNotFoundError,
                CharacterNotFoundError,
                UnknownModelError,
                SettingNotTakenError,
            ),
            EXAMPLE: {"texts": ["Who lives in the lighthouse?"]},
        },
        summary="Try a lorebook on a text",
    )
    async def test_lorebook(
        self,
        lorebook_id: FromPath[UUID],
        data: JSONBody[LoreTestRequest],
        identity: NamedDependency[Identity],
        lore_tester: NamedDependency[LoreTester],
    ) -> LoreTest:
        """Return the entries that a text activates, with their keys, and the ones that it misses.

        The same scan fills prompts. It uses only this lorebook, linked or not, and only the text,
        not the messages of a chat. There is no semantic search, and nothing is stored.
        """
        return await lore_tester.test(identity, lorebook_id, data)
