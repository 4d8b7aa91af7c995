"""Downtime of a campaign, while no turn of its chats is open."""

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import ChangeView
from backend.campaigns.errors import CampaignNotFoundError
from backend.campaigns.ledger.records import get_campaign, open_campaign
from backend.campaigns.play.store import commit_table, load_table
from backend.campaigns.play.table import DowntimeError, Table, enter_downtime, leave_downtime
from backend.campaigns.state.snapshot import SnapshotCache
from backend.chats.models import Chat
from backend.database.engine import Database
from backend.errors import PreconditionFailedError, ValidationError
from backend.http.schemas import COMMON_RAISES, IfMatch, check_revision, tag_body
from backend.turns.errors import TurnInProgressError, TurnWaitingError
from backend.turns.models import OPEN_STATES, Turn
from backend.turns.run.events import find_awaited_choice


class NewDowntime(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An activity of downtime and its target."""

    activity: Annotated[str, msgspec.Meta(min_length=1, max_length=50)]
    target: Annotated[str, msgspec.Meta(max_length=200)] = ""


class DowntimeView(msgspec.Struct, kw_only=True):
    """The result of downtime: its dice, and the changes of the ledger."""

    result: dict[str, Any]
    changes: list[ChangeView]
    version: int


class DowntimeService:
    """Begins and ends downtime. Its changes count as the user's own, so they always apply."""

    def __init__(self, database: Database, names: SnapshotCache) -> None:
        self._database = database
        self._names = names

    async def begin(
        self, identity: Identity, campaign_id: UUID, new: NewDowntime, *, if_match: str | None
    ) -> DowntimeView:
        """Begin downtime with an activity.

        Raises `CampaignNotFoundError`, `PreconditionFailedError`, `TurnInProgressError`,
        `TurnWaitingError`, `DowntimeError`, and `ValidationError` if the rules do not have the
        activity or the campaign is not played.
        """

        def enter(table: Table) -> dict[str, Any]:
            return enter_downtime(table, new.activity, new.target)

        return await self._play(identity, campaign_id, enter, if_match)

    async def end(self, identity: Identity, campaign_id: UUID, *, if_match: str | None) -> None:
        """End downtime. Raises the errors of `begin`."""
        await self._play(identity, campaign_id, leave_downtime, if_match)

    async def _play(
        self,
        identity: Identity,
        campaign_id: UUID,
        act: Callable[[Table], dict[str, Any] | None],
        if_match: str | None,
    ) -> DowntimeView:
        sealer = identity.sealer
        async with self._database.write() as session:
            campaign = await get_campaign(session, identity, campaign_id, lock=True)
            check_revision(if_match, campaign.version)
            if not open_campaign(sealer, campaign).settings.tools:
                raise ValidationError(
                    "Downtime needs the campaign's setting `tools`. Turn it on first."
                )
            await _check_no_turn(session, identity, campaign_id)
            names = await self._names.load(session, sealer, campaign)
            table = await load_table(session, sealer, campaign, names)
            result = act(table)
            changes = await commit_table(session, sealer, campaign, table)
            version = campaign.version
        return DowntimeView(
            result=result or {},
            changes=msgspec.convert(changes, list[ChangeView]),
            version=version,
        )


async def _check_no_turn(session: AsyncSession, identity: Identity, campaign_id: UUID) -> None:
    turn = await session.scalar(
        select(Turn)
        .join(Chat, Chat.id == Turn.chat_id)
        .where(
            Chat.campaign_id == campaign_id,
            Turn.user_id == identity.user_id,
            Turn.state.in_(OPEN_STATES),
        )
        .order_by(Turn.state.desc())
        .limit(1)
    )
    if turn is None:
        return
    if turn.state == "waiting":
        raise TurnWaitingError(turn.id, find_awaited_choice(identity.sealer, turn))
    raise TurnInProgressError(turn.id)


class DowntimeController(Controller):
    """`/campaigns/{campaign_id}/downtime`: downtime between scenes."""

    path = "/campaigns/{campaign_id:uuid}/downtime"
    tags = ("Campaigns",)
    opt = {  # noqa: RUF012  # Litestar's own declaration
        COMMON_RAISES: (
            CampaignNotFoundError,
            PreconditionFailedError,
            TurnInProgressError,
            TurnWaitingError,
            DowntimeError,
        )
    }

    @post(status_code=200, operation_id="beginDowntime", summary="Start downtime")
    async def begin_downtime(
        self,
        campaign_id: FromPath[UUID],
        data: JSONBody[NewDowntime],
        identity: NamedDependency[Identity],
        downtime: NamedDependency[DowntimeService],
        if_match: IfMatch = None,
    ) -> Response[DowntimeView]:
        """Begin downtime with an activity of the campaign's rules. The server rolls the dice.

        This is refused during an action, and while a turn of the campaign runs or waits.
        """
        begun = await downtime.begin(identity, campaign_id, data, if_match=if_match)
        return tag_body(begun, begun.version)

    @delete(operation_id="endDowntime", summary="End downtime")
    async def end_downtime(
        self,
        campaign_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        downtime: NamedDependency[DowntimeService],
        if_match: IfMatch = None,
    ) -> None:
        """Return to the mood in which play begins. Changes made in downtime are kept."""
        await downtime.end(identity, campaign_id, if_match=if_match)
