"""The last requests of an account's clients, and the user's corrections of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import Row, Select, and_, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageBusyError, MessageNotFoundError, MessagesFollowError
from backend.chats.messages import MessageService
from backend.chats.service import ChatService
from backend.core.logs import get_logger
from backend.database.base import new_id, now, upsert
from backend.database.engine import Database, OvertakenError
from backend.errors import ConflictError, NotFoundError
from backend.http.schemas import Page, make_page, make_struct
from backend.openai_api.decisions import digest_instruction
from backend.openai_api.models import (
    CLIENT_REQUEST_DETAILS,
    CLIENT_RULE_TEXT,
    ClientRequest,
    ClientRule,
    RequestKind,
    RequestReason,
    RuledKind,
)
from backend.turns import repository as turns
from backend.turns.models import Turn
from backend.vault.sealing import Sealer

log = get_logger(__name__)

MAX_REQUESTS = 50
"""Requests that are kept for each account."""
MAX_RULES = 200
"""Per account. The oldest ones are deleted first."""

MAX_TEXT_CHARS = 200
MAX_NAME_CHARS = 100
MAX_IGNORED_NAMES = 20

CorrectionOutcome = Literal["removed", "followed", "continued", "from_next"]
"""The effect of a correction.

`removed`: the line and the reply that the request stored are deleted. `followed`: they stay,
because other messages are below them. `continued`: the text stays, because it is part of an older
reply. `from_next`: nothing has to be deleted, and requests like this one are decided differently
from now on.
"""

_STORED_KINDS: frozenset[RequestKind] = frozenset({"turn", "swipe", "continue"})
_UNDECIDED_KINDS: frozenset[RequestKind] = frozenset({"plain", "repeat"})
"""Kinds that no rule can change: nothing is recognised, or an earlier request was decided."""


class ClientRequestNotFoundError(NotFoundError):
    """The request is no longer listed, or belongs to another user."""

    slug, title = "client-request-not-found", "Request not found"


class ClientRuleNotFoundError(NotFoundError):
    """The rule does not exist or belongs to another user."""

    slug, title = "client-rule-not-found", "Rule not found"


class NotCorrectableError(ConflictError):
    """The decision about the request does not depend on an instruction."""

    slug, title = "client-request-not-correctable", "The decision cannot be corrected"


class RequestDetails(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The sealed part of a request. `RequestLog.record` shortens its texts.

    Attributes:
        model: The name of the model in the request.
        client: The program, as `describe_client` returns it.
        lines: Lines of the conversation in the request.
        matched: Lines that were already stored.
        edited: Stored messages that got the client's text.
        hidden: Stored messages that the client no longer sends.
        stored: Lines of the client that were added, including the one that is answered.
        text: The beginning of the instruction, or of the last line.
        ignored: Parameters that had no effect.
        milliseconds: The time from the request to the decision.
    """

    model: str = ""
    client: str = ""
    lines: int = 0
    matched: int = 0
    edited: int = 0
    hidden: int = 0
    stored: int = 0
    text: str = ""
    ignored: tuple[str, ...] = ()
    milliseconds: int = 0


class ClientRequestView(msgspec.Struct, kw_only=True):
    """A request of a client, and the decision about it.

    `lines` is the number of lines that were sent. Of these, `matched` were known and `stored` are
    new. `edited` and `hidden` count messages that were changed. `text` is the beginning of the
    instruction or of the last line. `milliseconds` is the time until the decision. `rule` is your
    correction for this instruction. `is_correctable` is false if a correction has no effect.
    """

    id: UUID
    at: datetime
    kind: RequestKind
    reason: RequestReason
    chat_id: UUID | None
    turn_id: UUID | None
    model: str
    client: str
    lines: int
    matched: int
    edited: int
    hidden: int
    stored: int
    text: str
    ignored: list[str]
    milliseconds: int
    rule: RuledKind | None
    is_correctable: bool


class RequestCorrection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The kind that the request should have had: a `turn` of the chat, or `quiet`."""

    kind: RuledKind


class CorrectionView(msgspec.Struct, kw_only=True):
    """The effect of a correction.

    `removed`: the request's line and reply are deleted. `followed`: they stay, because other
    messages are below them. `continued`: the text stays, because it is part of an older reply.
    `from_next`: nothing had to be deleted. The request itself cannot be repeated; the next one like
    it is decided differently.
    """

    outcome: CorrectionOutcome
    request: ClientRequestView


class ClientRuleView(msgspec.Struct, kw_only=True):
    """A correction: requests with the instruction that begins with `text` are of this kind."""

    id: UUID
    kind: RuledKind
    text: str
    created_at: datetime


class RequestLog:
    """Records requests, and applies corrections. Each route lists its errors."""

    def __init__(self, database: Database, messages: MessageService, chats: ChatService) -> None:
        self._database = database
        self._messages = messages
        self._chats = chats

    async def record(
        self,
        identity: Identity,
        *,
        kind: RequestKind,
        reason: RequestReason,
        chat_id: UUID | None,
        turn_id: UUID | None,
        instruction: str | None,
        details: RequestDetails,
    ) -> None:
        """Store a request, and delete all but the last ones.

        `instruction` is the text that rules are compared with: the trailing instruction, or the
        last line if the decision is about it. None if no rule applies. If the account or the chat
        is deleted at the same time, nothing is stored.
        """
        sealer, row_id = identity.sealer, new_id()
        data = msgspec.json.encode(_shorten(details))
        row = ClientRequest(
            id=row_id,
            user_id=identity.user_id,
            kind=kind,
            reason=reason,
            chat_id=chat_id,
            turn_id=turn_id,
            instruction_digest=digest_instruction(sealer, instruction) if instruction else None,
            sealed_details=sealer.seal_bytes(CLIENT_REQUEST_DETAILS, row_id, data),
        )
        oldest_kept = (
            select(ClientRequest.id)
            .where(ClientRequest.user_id == identity.user_id)
            .order_by(ClientRequest.id.desc())
            .offset(MAX_REQUESTS - 1)
            .limit(1)
            .scalar_subquery()
        )
        try:
            async with self._database.write() as session:
                session.add(row)
                await session.flush()
                await session.execute(
                    delete(ClientRequest).where(
                        ClientRequest.user_id == identity.user_id, ClientRequest.id < oldest_kept
                    )
                )
        except OvertakenError:
            log.info("client_request.not_recorded", chat_id=chat_id)

    async def list_requests(
        self, identity: Identity, *, after: UUID | None, limit: int
    ) -> Page[ClientRequestView]:
        query = _select_requests(identity).order_by(ClientRequest.id.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(ClientRequest.id < after)
        async with self._database.read() as session:
            found = (await session.execute(query)).all()
        rules = {row.ClientRequest.id: row.rule for row in found}
        rows, following = make_page([row.ClientRequest for row in found], limit)
        items = [_view_request(identity.sealer, row, rules[row.id]) for row in rows]
        return Page(items=items, next=following)

    async def correct(
        self, identity: Identity, request_id: UUID, kind: RuledKind
    ) -> CorrectionView:
        """Store a rule for requests with the same instruction.

        If the request was stored as a turn and should not have been, its messages are deleted, or
        the whole chat if the request has created it. Messages below them prevent this.
        """
        async with self._database.read() as session:
            row = (await _get_request(session, identity, request_id)).ClientRequest
        if row.kind in _UNDECIDED_KINDS:
            raise NotCorrectableError(
                "It was a repeated request, or one for a model without a chat."
            )
        outcome: CorrectionOutcome = "from_next"
        if kind == "quiet" and row.kind in _STORED_KINDS:
            outcome = await self._remove(identity, row)
        if row.instruction_digest is None and outcome == "from_next":
            raise NotCorrectableError(
                "Only requests with an instruction can be recognised again. Send the header "
                "X-Talekeeper-Store: always or never."
            )
        async with self._database.write() as session:
            if row.instruction_digest is not None:
                await _store_rule(session, identity.sealer, row, kind)
            current, rule = await _get_request(session, identity, request_id)
            view = _view_request(identity.sealer, current, rule)
        return CorrectionView(outcome=outcome, request=view)

    async def load_rules(self, identity: Identity) -> Mapping[bytes, RuledKind]:
        """Return the kind for each digest of an instruction that the user has corrected."""
        query = select(ClientRule.instruction_digest, ClientRule.kind).where(
            ClientRule.user_id == identity.user_id
        )
        async with self._database.read() as session:
            return {row.instruction_digest: row.kind for row in await session.execute(query)}

    async def list_rules(
        self, identity: Identity, *, after: UUID | None, limit: int
    ) -> Page[ClientRuleView]:
        query = (
            select(ClientRule)
            .where(ClientRule.user_id == identity.user_id)
            .order_by(ClientRule.id.desc())
            .limit(limit + 1)
        )
        if after is not None:
            query = query.where(ClientRule.id < after)
        async with self._database.read() as session:
            rows, following = make_page(list(await session.scalars(query)), limit)
        items = [
            ClientRuleView(
                id=row.id,
                kind=row.kind,
                text=identity.sealer.open(CLIENT_RULE_TEXT, row.id, row.sealed_text),
                created_at=row.created_at,
            )
            for row in rows
        ]
        return Page(items=items, next=following)

    async def delete_rule(self, identity: Identity, rule_id: UUID) -> None:
        async with self._database.write() as session:
            found = await session.scalar(
                delete(ClientRule)
                .where(ClientRule.id == rule_id, ClientRule.user_id == identity.user_id)
                .returning(ClientRule.id)
            )
        if found is None:
            raise ClientRuleNotFoundError

    async def _remove(self, identity: Identity, row: ClientRequest) -> CorrectionOutcome:
        """Delete the messages that a request has stored, unless others are below them.

        Raises `MessageBusyError` if the reply is being written.
        """
        if row.kind == "continue":
            return "continued"
        async with self._database.read() as session:
            turn = await _find_turn(session, row)
            if turn is not None and await _has_earlier_request(session, row):
                # The line has chosen an option of a campaign's turn, which then continued.
                return "continued"
        if turn is None:  # its chat is deleted
            return "removed"
        if turn.state == "running":
            raise MessageBusyError("Stop it first, or wait until it is finished.")
        # A swipe names the line that it answers, but has not stored it.
        has_stored_line = _open_details(identity.sealer, row).stored > 0
        line_id = turn.user_message_id if has_stored_line else None
        own = [each for each in (line_id, turn.reply_id) if each is not None]
        try:
            if row.reason == "new_chat" and own:
                await self._chats.delete(identity, turn.chat_id, newest=own[-1])
            elif own:
                await self._messages.delete(identity, own[0], expected=own)
        except MessagesFollowError:
            return "followed"
        except MessageNotFoundError:
            return "removed"
        return "removed"


def _shorten(details: RequestDetails) -> RequestDetails:
    return msgspec.structs.replace(
        details,
        model=details.model[:MAX_NAME_CHARS],
        client=details.client[:MAX_NAME_CHARS],
        text=details.text[:MAX_TEXT_CHARS],
        ignored=tuple(each[:MAX_NAME_CHARS] for each in details.ignored[:MAX_IGNORED_NAMES]),
    )


def _select_requests(identity: Identity) -> Select[*tuple[Any, ...]]:
    """Select requests, each with the kind of the rule for its instruction as `rule`."""
    is_rule = and_(
        ClientRule.user_id == ClientRequest.user_id,
        ClientRule.instruction_digest == ClientRequest.instruction_digest,
    )
    return (
        select(ClientRequest, ClientRule.kind.label("rule"))
        .outerjoin(ClientRule, is_rule)
        .where(ClientRequest.user_id == identity.user_id)
    )


async def _get_request(
    session: AsyncSession, identity: Identity, request_id: UUID
) -> Row[*tuple[Any, ...]]:
    query = _select_requests(identity).where(ClientRequest.id == request_id)
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise ClientRequestNotFoundError
    return row


async def _find_turn(session: AsyncSession, row: ClientRequest) -> Turn | None:
    if row.turn_id is None:
        return None
    return await turns.find_turn(session, row.turn_id, owner_id=row.user_id)


async def _has_earlier_request(session: AsyncSession, row: ClientRequest) -> bool:
    """True if an earlier request has begun the turn."""
    query = select(ClientRequest.id).where(
        ClientRequest.user_id == row.user_id,
        ClientRequest.turn_id == row.turn_id,
        ClientRequest.id < row.id,
    )
    return await session.scalar(query.limit(1)) is not None


async def _store_rule(
    session: AsyncSession, sealer: Sealer, row: ClientRequest, kind: RuledKind
) -> None:
    rule_id = new_id()
    text = _open_details(sealer, row).text
    values = {
        "id": rule_id,
        "user_id": row.user_id,
        "instruction_digest": row.instruction_digest,
        "kind": kind,
        "sealed_text": sealer.seal(CLIENT_RULE_TEXT, rule_id, text),
        "created_at": now(),
    }
    await upsert(
        session, ClientRule, values, key=("user_id", "instruction_digest"), update=("kind",)
    )
    oldest_kept = (
        select(ClientRule.id)
        .where(ClientRule.user_id == row.user_id)
        .order_by(ClientRule.id.desc())
        .offset(MAX_RULES - 1)
        .limit(1)
        .scalar_subquery()
    )
    await session.execute(
        delete(ClientRule).where(ClientRule.user_id == row.user_id, ClientRule.id < oldest_kept)
    )


def _open_details(sealer: Sealer, row: ClientRequest) -> RequestDetails:
    data = sealer.open_bytes(CLIENT_REQUEST_DETAILS, row.id, row.sealed_details)
    return msgspec.json.decode(data, type=RequestDetails)


def _view_request(sealer: Sealer, row: ClientRequest, rule: RuledKind | None) -> ClientRequestView:
    details = _open_details(sealer, row)
    is_decided = row.kind not in _UNDECIDED_KINDS
    return make_struct(
        ClientRequestView,
        details,
        id=row.id,
        at=row.created_at,
        kind=row.kind,
        reason=row.reason,
        chat_id=row.chat_id,
        turn_id=row.turn_id,
        ignored=list(details.ignored),
        rule=rule,
        is_correctable=is_decided
        and (row.instruction_digest is not None or row.kind in _STORED_KINDS),
    )
