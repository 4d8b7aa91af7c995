"""Routes for the page of other clients: model names, the last requests, and corrections."""

from uuid import UUID

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageBusyError
from backend.http.schemas import RAISES, STORES, Page, PageSize
from backend.openai_api.model_names import ModelNames
from backend.openai_api.requests import (
    ClientRequestNotFoundError,
    ClientRequestView,
    ClientRuleNotFoundError,
    ClientRuleView,
    CorrectionView,
    NotCorrectableError,
    RequestCorrection,
    RequestLog,
)
from backend.openai_api.schemas import ModelEntry


class ClientModelController(Controller):
    """The names that clients can use as `model`."""

    path = "/client-models"
    tags = ("Clients",)

    @get(summary="List model names for clients")
    async def list_client_models(
        self, identity: NamedDependency[Identity], model_names: NamedDependency[ModelNames]
    ) -> Page[ModelEntry]:
        """Return the list of `GET /v1/models`, which a session cannot read. It is complete."""
        return Page(items=await model_names.list_entries(identity))


class ClientRequestController(Controller):
    """The last requests to `/v1`."""

    path = "/client-requests"
    tags = ("Clients",)

    @get(summary="List requests of clients")
    async def list_client_requests(
        self,
        identity: NamedDependency[Identity],
        client_requests: NamedDependency[RequestLog],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ClientRequestView]:
        """List the last 50 requests to `/v1`, newest first, with the decision about each."""
        return await client_requests.list_requests(identity, after=after, limit=limit)

    @post(
        "/{request_id:uuid}/correction",
        status_code=200,
        opt={
            RAISES: (ClientRequestNotFoundError, NotCorrectableError, MessageBusyError),
            STORES: False,
        },
        summary="Correct a decision",
    )
    async def correct_client_request(
        self,
        request_id: FromPath[UUID],
        data: JSONBody[RequestCorrection],
        identity: NamedDependency[Identity],
        client_requests: NamedDependency[RequestLog],
    ) -> CorrectionView:
        """Decide requests with the same instruction as `turn` or `quiet` from now on.

        With `quiet`, the line and the reply that the request has stored are deleted if no message
        is below them. If the request has created its chat, the chat is deleted. A quiet request
        cannot become a turn later, because its prompt is not stored: the next one is stored.
        """
        return await client_requests.correct(identity, request_id, data.kind)


class ClientRuleController(Controller):
    """Corrections of decisions about requests."""

    path = "/client-rules"
    tags = ("Clients",)

    @get(summary="List corrections")
    async def list_client_rules(
        self,
        identity: NamedDependency[Identity],
        client_requests: NamedDependency[RequestLog],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ClientRuleView]:
        """List your corrections, newest first. At most 200 are kept."""
        return await client_requests.list_rules(identity, after=after, limit=limit)

    @delete(
        "/{rule_id:uuid}",
        opt={RAISES: (ClientRuleNotFoundError,)},
        summary="Delete a correction",
    )
    async def delete_client_rule(
        self,
        rule_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        client_requests: NamedDependency[RequestLog],
    ) -> None:
        """Delete a correction. Requests with its instruction are decided by their form again."""
        await client_requests.delete_rule(identity, rule_id)
