"""The job that finds new glossary terms and tags of events in one reply.

Rules find candidates for both, and one call of the model decides about them. Without candidates no
model is asked. A confirmed tag makes the compaction of the campaign due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.glossary.coinages import (
    MAX_COINED,
    MAX_TERM,
    Coinage,
    Familiar,
    find_coined,
    hides_names,
    make_term_key,
)
from backend.campaigns.glossary.tags import TAGS, Tag, TagMatch, find_tags
from backend.campaigns.glossary.terms import (
    MAX_DEFINITION,
    MAX_PROPOSED,
    Definition,
    KnownTerm,
    count_uses,
    load_entity_names,
    load_terms,
    propose_terms,
)
from backend.campaigns.ledger.records import find_campaign, open_campaign
from backend.campaigns.names.roster import NameIndex
from backend.campaigns.state.witnesses import find_message_audience
from backend.characters import repository as characters
from backend.characters.cards.model import Card
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import list_character_ids
from backend.enrichment.cleaning import clip, strip_tags, to_one_line
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.pipeline import (
    PathChangedError,
    RunWork,
    Task,
)
from backend.enrichment.reader import open_budget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import is_readable
from backend.generation.declined_answers import check_declined
from backend.generation.tokens import get_tokenizer
from backend.generation.tools.calls import simplify_schema
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import CHARACTERS_PER_TOKEN, build_prompt

MAX_PASSAGE = 12_000
"""Maximum characters of a reply that the model reads if rules alone cannot find its terms."""

_VOCABULARY = "o200k_base"


class _Term(msgspec.Struct, frozen=True):
    """A word that the story coins."""

    term: Annotated[str, Meta(description="As the text spells it.")]
    definition: Annotated[str, Meta(description="What it is, in one sentence.")] = ""


class GlossaryAnswer(msgspec.Struct, frozen=True):
    """The terms of the story, and the tags that apply to a reply."""

    terms: list[_Term] = []
    tags: Annotated[list[str], Meta(description="Those of the given tags that are so.")] = []


SCHEMA = {**simplify_schema(GlossaryAnswer), "required": ["terms", "tags"]}


@dataclass(frozen=True, kw_only=True)
class GlossaryWork(RunWork):
    """A reply, and the names and terms that are already known.

    `version` is the campaign's version of `terms`. If `proposes` is False, only uses of known terms
    are counted.
    """

    changed_at: datetime
    text: str
    campaign_id: UUID
    version: int
    terms: Sequence[KnownTerm]
    names: Sequence[str]
    players: Sequence[str]
    texts: Sequence[str]
    proposes: bool


@dataclass(frozen=True, slots=True)
class GlossaryProposal:
    """The new terms of a reply, the known terms that it uses, and its tags."""

    definitions: Sequence[Definition] = ()
    used: Sequence[UUID] = ()
    tags: Sequence[Tag] = ()
    note: str = ""


class _Found(NamedTuple):
    """The known terms that a reply uses, and candidates for new terms and tags.

    `is_open` says that rules alone cannot find all terms of the text.
    """

    used: Sequence[UUID]
    coined: Sequence[Coinage]
    tags: Sequence[TagMatch]
    familiar: Familiar
    is_open: bool


class GlossaryTask(Task[GlossaryWork, GlossaryProposal]):
    """Reads one reply of a campaign's chat, if the owner has consented."""

    kind = "glossary"

    async def load(self, session: AsyncSession, chat: Chat) -> GlossaryWork | None:
        """Load the reply with the names and terms of its campaign and the texts of its cards.

        Returns None if the reply is no longer on the active path, or if the user's daily tokens are
        used up. Its terms are then found when they are used again.
        """
        if not chat.chronicle_enabled:
            raise ChronicleNotEnabledError
        message = await session.scalar(
            select(Message).where(
                is_readable(chat),
                Message.id == UUID(self.job.payload["message_id"]),
                Message.role != "user",
            )
        )
        if message is None or chat.campaign_id is None or _is_before_consent(chat, message):
            return None
        campaign = await find_campaign(session, self.sealer, chat.campaign_id)
        if campaign is None:
            return None
        try:
            budget = await open_budget(session, self.runtime.settings, self.sealer.user_id)
        except RetryLaterError:
            return None
        fields = open_campaign(self.sealer, campaign)
        terms = await load_terms(session, self.sealer, campaign.id)
        waiting = sum(known.status == "proposed" for known in terms)
        names, players, texts = await self._read_cast(session, chat, message)
        reader = await self.load_reader(session, chat)
        return GlossaryWork(
            reader=reader,
            budget=budget,
            message_ids=[message.id],
            from_position=message.position,
            to_position=message.position,
            ends_job=True,
            changed_at=message.updated_at,
            text=self.sealer.open(MESSAGE_CONTENT, message.id, message.sealed_content),
            campaign_id=campaign.id,
            # A stale campaign is folded before the proposals are written, and compared again.
            version=-1 if campaign.is_stale else campaign.version,
            terms=terms,
            names=[*names, *await load_entity_names(session, self.sealer, campaign.id)],
            players=[*players, reader.player.name] if reader.player else players,
            texts=[*texts, fields.name, *msgspec.structs.astuple(fields.brief)],
            proposes=fields.settings.approve_terms or waiting < MAX_PROPOSED,
        )

    async def propose(self, work: GlossaryWork) -> GlossaryProposal:
        """Find candidates by rules, and ask the model about them, if there are any."""
        pool, size = self.runtime.agent.pool, sum(map(len, (work.text, *work.names, *work.texts)))
        finding = partial(_find, work)
        found = await pool.run(self.sealer.user_id, finding, size=size, is_job=True)
        if not found.coined and not found.tags and not found.is_open:
            return GlossaryProposal(used=found.used)
        definitions, tags = await self._confirm(work, found)
        return GlossaryProposal(
            definitions=definitions,
            used=found.used,
            tags=tags,
            note=self.build_note(work),
        )

    async def apply(
        self, session: AsyncSession, chat: Chat, work: GlossaryWork, proposal: GlossaryProposal
    ) -> RunDetail:
        """Write the proposals as changes of the reply, and count the uses of known terms.

        A tag makes the compaction of the campaign due.
        """
        message = await session.scalar(
            select(Message).where(is_readable(chat), Message.id == work.message_ids[0])
        )
        if (
            message is None
            or message.updated_at != work.changed_at
            or not chat.chronicle_enabled
            or chat.campaign_id != work.campaign_id
            or _is_before_consent(chat, message)
        ):
            raise PathChangedError
        campaign = await find_campaign(session, self.sealer, work.campaign_id, lock=True)
        if campaign is None:
            raise PathChangedError
        await count_uses(session, proposal.used)
        proposed = await propose_terms(
            session,
            self.sealer,
            campaign,
            message,
            proposal.definitions,
            known_at=work.version,
            audience=await find_message_audience(session, self.sealer, chat, message),
        )
        if proposal.tags:
            await self.runtime.outbox.compact(session, work.reader, chat)
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=bool(proposed or proposal.tags),
            why=", ".join(proposed),
            kinds=list(proposal.tags),
            note=proposal.note,
        )

    async def _read_cast(
        self, session: AsyncSession, chat: Chat, message: Message
    ) -> tuple[list[str], list[str], list[str]]:
        sealer, owner_id = self.sealer, self.sealer.user_id
        lines = [message]
        if message.parent_id is not None:
            lines.append(await session.get_one(Message, message.parent_id))
        names = [sealer.open(MESSAGE_AUTHOR, line.id, line.sealed_author) for line in lines]
        players: list[str] = []
        texts: list[str] = []
        for character_id in (await list_character_ids(session, [chat.id])).get(chat.id, []):
            card = await characters.get_card(
                session, character_id, owner_id=owner_id, sealer=sealer
            )
            names += [card.name, card.nickname]
            texts += _list_texts(card)
        if persona_id := lines[-1].persona_id or chat.persona_id:
            persona = await characters.find_persona(
                session, persona_id, owner_id=owner_id, sealer=sealer
            )
            if persona is not None:
                players.append(persona.name)
                texts.append(persona.description)
        return [*names, *players], players, texts

    async def _confirm(
        self, work: GlossaryWork, found: _Found
    ) -> tuple[list[Definition], list[Tag]]:
        """Return the terms that the model defines and the tags that it confirms."""
        prompts = self.runtime.prompts
        candidates = [
            Coinage(strip_tags(one.term), to_one_line(one.snippet)) for one in found.coined
        ]
        tags = [TagMatch(one.tag, strip_tags(to_one_line(one.snippet))) for one in found.tags]
        most = min(MAX_PASSAGE, work.reader.stretch_tokens * CHARACTERS_PER_TOKEN)
        passage = strip_tags(clip(work.text, most)).strip() if found.is_open else ""
        prompt = build_prompt(
            prompts["enrichment/glossary"].render(most=MAX_COINED),
            prompts["enrichment/glossary_terms"].render(
                terms=candidates, passage=passage, tags=tags
            ),
        )
        said = await self.ask(work, prompt, SCHEMA, GlossaryAnswer)
        for each in said.terms:
            check_declined(each.definition)
        kept = _select_terms(said.terms, candidates, passage, found.familiar)
        tags_found = {one.tag for one in found.tags}
        return kept, [tag for tag in TAGS if tag in tags_found and tag in said.tags]


def _find(work: GlossaryWork) -> _Found:
    count = get_tokenizer(_VOCABULARY).count
    familiar = Familiar(
        names=work.names,
        terms=[known.term for known in work.terms],
        texts=work.texts,
        # A common word is one token of a large vocabulary.
        is_common=lambda word: count(f" {word}") == 1,
    )
    return _Found(
        used=NameIndex((known.id, known.term) for known in work.terms).find(work.text),
        coined=find_coined(work.text, familiar) if work.proposes else [],
        tags=find_tags(work.text, work.names, work.players),
        familiar=familiar,
        is_open=work.proposes and hides_names(work.text),
    )


def _select_terms(
    said: Sequence[_Term], candidates: Sequence[Coinage], passage: str, familiar: Familiar
) -> list[Definition]:
    """Return the defined candidates, and other terms that the model found in the passage."""
    spelled = {make_term_key(each.term): each.term for each in candidates}
    kept: dict[str, Definition] = {}
    for each in said:
        key, text = make_term_key(each.term), to_one_line(clip(each.definition, MAX_DEFINITION))
        term = spelled.get(key, "")
        if not term and 1 < len(each.term) <= MAX_TERM and "\n" not in each.term:
            is_new = each.term in passage and not familiar.has(each.term)
            term = each.term.strip() if is_new else ""
        if term and text:
            kept.setdefault(key, Definition(term, text))
    return list(kept.values())[:MAX_COINED]


def _list_texts(card: Card) -> list[str]:
    told = [card.description, card.personality, card.scenario, card.first_mes, card.mes_example]
    orders = [card.system_prompt, card.post_history_instructions]
    return [*told, *orders, *card.alternate_greetings, *card.group_only_greetings]


def _is_before_consent(chat: Chat, message: Message) -> bool:
    return chat.chronicle_since is not None and message.created_at < chat.chronicle_since
