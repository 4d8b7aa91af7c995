"""Tables of campaigns, their items, and the ledger of changes."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from backend.campaigns.ledger.items import Kind
from backend.database.base import Base, CreatedAt, Deletable, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

Actor = Literal["user", "tool", "compactor", "import"]


class Campaign(Deletable, Base):
    """A campaign. The chats that belong to it are its sessions.

    `version` counts the transactions that changed its state or a setting. `edits` and `compactions`
    determine when a chat needs a full block again. `is_stale` is True if items must be folded.
    """

    __tablename__ = "campaigns"

    id: Mapped[PrimaryId]
    rules: Mapped[str]
    chronicle_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chronicles.id", ondelete="SET NULL"), index=True
    )
    sealed_campaign: Mapped[bytes]
    version: Mapped[int] = mapped_column(default=1)
    last_seq: Mapped[int] = mapped_column(default=0)
    edits: Mapped[int] = mapped_column(default=0)
    compactions: Mapped[int] = mapped_column(default=0)
    is_stale: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CAMPAIGN = Column("campaigns", "sealed_campaign")


class CampaignItem(Base):
    """The sealed state of an item, folded from its active changes, and columns for queries.

    `place_id` is the place of an entity or scene. `about_id` is a fact's entity, or the first
    entity of a relation. `is_live` is True for an open thread or scene, a fact that is not
    superseded, and a visible clock. `audience` is `gm`, `public`, or ids between blanks. `seq` is
    the last active change, `version` the campaign's version that wrote the row. `uses` counts the
    replies that contain a term, on all branches; it is not part of the ledger.
    """

    __tablename__ = "campaign_items"
    __table_args__ = (
        Index(None, "campaign_id", "kind", "id"),
        Index(None, "campaign_id", "kind", "subkind"),
        Index(None, "campaign_id", "place_id", "kind"),
        Index(None, "campaign_id", "about_id", "kind"),
        Index(None, "campaign_id", "version"),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    campaign_id: Mapped[UUID] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    kind: Mapped[Kind] = mapped_column(String)
    version: Mapped[int] = mapped_column(default=0)
    subkind: Mapped[str] = mapped_column(default="")
    place_id: Mapped[UUID | None]
    about_id: Mapped[UUID | None]
    audience: Mapped[str] = mapped_column(default="public")
    exists: Mapped[bool] = mapped_column(default=False)
    is_live: Mapped[bool] = mapped_column(default=False)
    is_stale: Mapped[bool] = mapped_column(default=False)
    seq: Mapped[int] = mapped_column(default=0)
    uses: Mapped[int] = mapped_column(default=0, server_default="0")
    sealed_state: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


STATE = Column("campaign_items", "sealed_state")


class CampaignChange(Base):
    """A line of the ledger: operations on one item.

    It is active if it is not undone, and has no message or one on an active path.
    """

    __tablename__ = "campaign_changes"
    __table_args__ = (Index(None, "campaign_id", "seq", unique=True), Index(None, "item_id", "seq"))

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    campaign_id: Mapped[UUID] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    item_id: Mapped[UUID] = mapped_column(ForeignKey("campaign_items.id", ondelete="CASCADE"))
    seq: Mapped[int]
    version: Mapped[int]
    actor: Mapped[Actor] = mapped_column(String)
    turn_id: Mapped[UUID | None]
    is_on_path: Mapped[bool] = mapped_column(default=True)
    is_undone: Mapped[bool] = mapped_column(default=False)
    sealed_operations: Mapped[bytes]
    created_at: Mapped[CreatedAt]


OPERATIONS = Column("campaign_changes", "sealed_operations")


class ChangeSource(Base):
    """A message that caused a change: the original, and its copies in forks of the chat.

    There is no foreign key to the message: a deleted message is on no path. Deleting a chat deletes
    its rows here, and active changes stay active.
    """

    __tablename__ = "campaign_change_sources"
    __table_args__ = (Index(None, "chat_id", "position"),)

    change_id: Mapped[UUID] = mapped_column(
        ForeignKey("campaign_changes.id", ondelete="CASCADE"), primary_key=True
    )
    message_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    position: Mapped[int]


class CampaignMark(Base):
    """A message (`id`) that a compaction has read; the results are in the ledger.

    It applies while the message is on its chat's active path. `version` is the campaign's version
    that the compaction wrote.
    """

    __tablename__ = "campaign_marks"
    __table_args__ = (Index(None, "chat_id", "position"), Index(None, "campaign_id", "version"))

    id: Mapped[UUID] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[OwnerId]
    campaign_id: Mapped[UUID] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    position: Mapped[int]
    version: Mapped[int]


ProposalReason = Literal["locked", "changed", "contradicts", "uncertain"]
ProposalState = Literal["open", "accepted", "refused"]


class CampaignProposal(Base):
    """A change that was read from a message and waits for the user, sealed with both sides.

    If it creates an item, `item_id` is the id of the new item. It is shown while one of its sources
    is on the active path.
    """

    __tablename__ = "campaign_proposals"
    __table_args__ = (Index(None, "campaign_id", "state", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    campaign_id: Mapped[UUID] = mapped_column(ForeignKey("campaigns.id", ondelete="CASCADE"))
    item_id: Mapped[UUID]
    kind: Mapped[Kind] = mapped_column(String)
    reason: Mapped[ProposalReason] = mapped_column(String)
    state: Mapped[ProposalState] = mapped_column(String, default="open")
    audience: Mapped[str] = mapped_column(default="public")
    sealed_proposal: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


PROPOSAL = Column("campaign_proposals", "sealed_proposal")


class ProposalSource(Base):
    """A message that a proposal comes from: the original, and its copies in forks of the chat."""

    __tablename__ = "campaign_proposal_sources"

    proposal_id: Mapped[UUID] = mapped_column(
        ForeignKey("campaign_proposals.id", ondelete="CASCADE"), primary_key=True
    )
    message_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), index=True)
