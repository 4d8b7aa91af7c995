"""Tables of campaigns: their items, and the ledger of changes that these are made of."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from backend.campaigns.ledger.items import Kind
from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

Actor = Literal["user", "tool", "compactor", "import"]


class Campaign(Base):
    """A campaign. Chats that belong to it are its sessions.

    `version` counts the transactions that changed its state or a setting; `last_seq` is the number
    of its newest change. `edits` and `compactions` say when a chat needs a full block again.
    `is_stale` says that a path moved while no key was at hand: some items are to be folded again.
    """

    __tablename__ = "campaigns"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
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
    """An item as its changes that count leave it, sealed, and what queries ask about it.

    `place_id` is where it is (of an entity or scene), `about_id` what it belongs to (a fact's
    entity, a relation's first one). `is_live` says that it exists and matters now: an open thread
    or scene, a fact that nothing supersedes, a clock that is shown. `audience` is `gm`, `public`,
    or ids between blanks. `seq` is the last change that counts, `version`
    the campaign's version that wrote the row. `uses` counts the replies that said a term since it
    is known, on whatever branch; it is no part of the ledger.
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

    It counts while it is not undone, and has no message or one that is on an active path.
    """

    __tablename__ = "campaign_changes"
    __table_args__ = (
        Index(None, "campaign_id", "seq", unique=True),
        Index(None, "item_id", "seq"),
    )

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
    """A message that made a change: its own, and the copies of it in forks of the chat.

    There is no key to the message: one that was deleted is on no path. With a chat its rows here
    go, and what counted goes on counting.
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
    """A message (`id`) that was read for its campaign: what follows from it is in the ledger.

    It counts while the message is on its chat's active path. `version` is the campaign's that the
    compaction has written.
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
    """A change that was read out of a message and waits for the user, sealed with both sides.

    It is about an item of a kind, which it may be the first to make (`item_id` is then its id to
    be). It is shown while a source of it is on the active path.
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
    """A message that a proposal comes from: its own, and the copies of it in forks of the chat."""

    __tablename__ = "campaign_proposal_sources"

    proposal_id: Mapped[UUID] = mapped_column(
        ForeignKey("campaign_proposals.id", ondelete="CASCADE"), primary_key=True
    )
    message_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), index=True)
