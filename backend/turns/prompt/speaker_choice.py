"""The speaker of a turn: the scene that the choice is made from, as it is loaded.

The rules are in `backend.turns.speakers`. `SpeakerModel` asks the task model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row, bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import load_played_entities
from backend.characters.errors import CharacterNotFoundError
from backend.characters.public_cards import PublicCards
from backend.characters.repository import NamedCharacter
from backend.chats import repository as chats
from backend.chats.errors import MemberAbsentError, NobodyPresentError
from backend.chats.members import Group, is_line
from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    Chat,
    Message,
    PassedNotice,
    decode_notices,
)
from backend.chats.schemas import DEFAULT_TALKATIVENESS, ChatSettings, NextSpeaker
from backend.core.audience import PUBLIC, Witness, list_entities
from backend.core.reasons import Reason
from backend.database.types import Id
from backend.turns.api.schemas import TurnRequest
from backend.turns.errors import NoSpeakerError, SpeakerNeededError
from backend.turns.prompt.context import TurnTarget
from backend.turns.speakers import (
    GroupScene,
    SceneMember,
    SpeakerChoice,
    choose_speaker,
    find_candidates,
    find_named,
    is_monologue,
    is_silent,
    make_seed,
    needs_draw,
)
from backend.vault.sealing import Sealer

MAX_SPEECHES = 60
"""The number of last messages that show who has spoken."""

SCENE_LINES, MAX_LINE_CHARACTERS = 6, 1_000
"""The last lines that the task model reads, and the end of each that it gets."""

REWRITING_KINDS = frozenset({"regenerate", "continue"})


class ChainEndedError(Exception):
    """No reply follows by itself: no one wants to or may speak, or the chat has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomaticReply:
    """A reply that follows another one by itself.

    Attributes:
        after: The message that it follows. The path must still end there.
        waiting: The characters that an earlier line has named and that have not spoken since.
    """

    after: UUID
    waiting: Sequence[UUID] = ()


@dataclass(slots=True, kw_only=True)
class TurnSpeaker:
    """The choice of one turn's speaker. It is kept if the prompt of the turn is built again.

    Attributes:
        seed: The seed of draws.
        automatic: Set for a reply that follows another one by itself.
        is_asked: True once the task model was asked. `answer_id` is its choice.
        chosen: The choice so far.
    """

    seed: int
    automatic: AutomaticReply | None = None
    is_asked: bool = False
    answer_id: UUID | None = None
    chosen: SpeakerChoice | None = None

    @classmethod
    def of_turn(cls, turn_id: UUID, automatic: AutomaticReply | None = None) -> TurnSpeaker:
        return cls(seed=make_seed(turn_id), automatic=automatic)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerQuestion:
    """The scene in which the task model chooses the next speaker."""

    chat: Chat
    settings: ChatSettings
    position: int
    candidates: Mapping[UUID, str]
    others: Sequence[str]
    deaf: Sequence[str]
    lines: Sequence[str]
    may_be_nobody: bool


class SpeakerQuestionError(Exception):
    """The task model has to choose the speaker before the prompt can be built."""

    def __init__(self, question: SpeakerQuestion) -> None:
        super().__init__("The task model chooses the speaker.")
        self.question = question


class SpeakerPick(NamedTuple):
    """The speaker of a turn, and the reasons for it. None for the narrator of an empty chat.

    `waiting` are others that the last lines have named, and `has_heard` is false if the speaker
    was asked although it does not know the last line.
    """

    character_id: UUID | None
    reasons: Sequence[Reason] = ()
    waiting: Sequence[UUID] = ()
    has_heard: bool = True


class _Speech(NamedTuple):
    """A message of the path that someone has said, or with which a character has passed."""

    by_user: bool
    character_id: UUID | None
    has_passed: bool


_SPEECHES = (
    select(Message.role, Message.character_id, Message.hidden, Message.notices)
    .where(
        Message.chat_id == bindparam("chat_id", type_=Id()),
        Message.is_active,
        Message.position <= bindparam("position"),
        Message.presence.is_(None),
        Message.role.in_(("user", "assistant")),
    )
    .order_by(Message.position.desc())
    .limit(MAX_SPEECHES)
)
_LAST_SHOWN = (
    select(Message)
    .where(
        Message.chat_id == bindparam("chat_id", type_=Id()),
        Message.is_active,
        Message.position <= bindparam("position"),
        Message.presence.is_(None),
        ~Message.hidden,
    )
    .order_by(Message.position.desc())
    .limit(SCENE_LINES)
)


async def find_spoken_line(session: AsyncSession, leaf: Message | None) -> Message | None:
    """Return the last line of the path that is part of the history.

    Changes of presence, briefings and passes are not lines. Usually it is the leaf itself.
    """
    if leaf is None or (is_line(leaf) and not leaf.hidden):
        return leaf
    rows = await session.scalars(_LAST_SHOWN, {"chat_id": leaf.chat_id, "position": leaf.position})
    return next(filter(is_line, rows), None)


class SpeakerFinder:
    """Finds the speaker of a turn, in the transaction that loads its chat.

    Args:
        session: The session of the transaction.
        identity: The user.
        chat: The chat with its `settings`, and its `group`.
        members: The members, in order.
        cards: The cards that are kept.
        turn: The choice so far, which `find` completes.
        may_ask: False for a preview, which asks no model and needs no choice by hand.
        has_client: True if the prompt is that of a client, which may not know of speakers.
    """

    def __init__(  # noqa: PLR0913  # the loader hands it what it has read
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        settings: ChatSettings,
        group: Group,
        members: Mapping[UUID, NamedCharacter],
        cards: PublicCards,
        *,
        turn: TurnSpeaker,
        may_ask: bool,
        has_client: bool,
    ) -> None:
        self._session = session
        self._identity = identity
        self._chat = chat
        self._settings = settings
        self._group = group
        self._names = {each: named.name for each, named in members.items()}
        self._revisions = {each: named.revision for each, named in members.items()}
        self._cards = cards
        self._turn = turn
        self._may_ask = may_ask
        self._has_client = has_client

    async def find(self, request: TurnRequest, target: TurnTarget, audience: str) -> SpeakerPick:
        """Return the requested speaker, else that of the reply, else the next one of the group.

        `audience` is that of a new line.

        Raises `CharacterNotFoundError`, `MemberAbsentError`, `NobodyPresentError`,
        `NoSpeakerError`, `SpeakerNeededError`, `SpeakerQuestionError` and `ChainEndedError`.
        """
        names, asked_id = self._names, request.speaker
        if asked_id is not None and asked_id not in names:
            raise CharacterNotFoundError
        first_id = next(iter(names), None)
        if not self._group.is_group:
            return SpeakerPick(asked_id or target.find_kept_speaker(names) or first_id)
        if request.impersonate:
            return SpeakerPick(asked_id or first_id)
        kept_id = None if asked_id else target.find_kept_speaker(names)
        speaker_id = asked_id or kept_id
        presences = self._group.find_presences(target.position)
        if speaker_id is not None and presences.get(speaker_id) == "absent" and self._may_ask:
            raise MemberAbsentError(speaker_id, names[speaker_id])
        if kept_id is not None:
            return SpeakerPick(kept_id, [Reason("speaker_kept")])
        if asked_id is None and self._way == "by_hand" and self._may_ask:
            raise SpeakerNeededError("Send `speaker`: in this chat, you choose who replies.")
        scene, line = await self._load_scene(request, target, audience)
        if asked_id is not None:
            has_heard = next(each.has_heard for each in scene.members if each.id == asked_id)
            others = [each for each in find_named(scene) if each != asked_id]
            return SpeakerPick(asked_id, [Reason("speaker_asked")], others, has_heard)
        return await self._choose(scene, line, target)

    @property
    def _way(self) -> NextSpeaker:
        way = self._settings.group.next_speaker
        return "mention" if way == "by_hand" and self._has_client else way

    async def _choose(
        self, scene: GroupScene, line: Message | None, target: TurnTarget
    ) -> SpeakerPick:
        candidates, turn = find_candidates(scene), self._turn
        by_id = {each.id: each for each in candidates}
        if turn.automatic and (not candidates or is_monologue(scene) or is_silent(scene)):
            raise ChainEndedError
        if not candidates:
            return self._pick_anyone(scene)
        if turn.chosen is None or turn.chosen.character_id not in by_id:
            turn.chosen = await self._choose_now(scene, line, target)
        chosen = turn.chosen
        named = dict.fromkeys((*find_named(scene), *scene.waiting))
        waiting = [each for each in named if each != chosen.character_id and each in self._names]
        return SpeakerPick(chosen.character_id, chosen.reasons, waiting)

    async def _choose_now(
        self, scene: GroupScene, line: Message | None, target: TurnTarget
    ) -> SpeakerChoice:
        candidates, turn, way = find_candidates(scene), self._turn, self._way
        by_id = {each.id: each for each in candidates}
        before: tuple[Reason, ...] = ()
        if way == "model" and len(candidates) > 1:
            if self._may_ask and not turn.is_asked:
                raise SpeakerQuestionError(await self._make_question(scene, line, target))
            if turn.answer_id is not None and turn.answer_id in by_id:
                return SpeakerChoice(turn.answer_id, (Reason("speaker_by_model"),))
            before = (
                Reason("speaker_not_by_model" if turn.is_asked else "speaker_by_model_later"),
            )
        if way == "by_hand":
            before = (Reason("speaker_by_hand"),)
            way = "mention"
        if needs_draw(scene, way):
            scene = await self._add_talkativeness(scene, by_id)
        chosen = choose_speaker(scene, way, turn.seed)
        if chosen is None:
            raise ValueError("One of the candidates speaks.")
        return chosen._replace(reasons=(*before, *chosen.reasons))

    def _pick_anyone(self, scene: GroupScene) -> SpeakerPick:
        """Return the first member for a preview. Raises an error for a turn."""
        if not self._may_ask and self._names:
            return SpeakerPick(next(iter(self._names)))
        if all(each.presence == "absent" for each in scene.members):
            raise NobodyPresentError("Let someone join first.")
        raise NoSpeakerError(
            "Those who have heard the last line only listen. Choose one of them with `speaker`."
        )

    async def _load_scene(
        self, request: TurnRequest, target: TurnTarget, audience: str
    ) -> tuple[GroupScene, Message | None]:
        """Return the scene, and the last line unless it is the request's own text."""
        line = None if request.text is not None else target.line or target.spoken
        leaf = target.line or target.leaf
        position = line.position if line else (leaf.position + 1 if leaf else 0)
        column = line.audience if line else audience
        hearers = await self._find_hearers(position, column)
        text = request.text or ""
        if line is not None:
            text = self._identity.sealer.open(MESSAGE_CONTENT, line.id, line.sealed_content)
        presences = self._group.find_presences(target.position)
        scene = GroupScene(
            members=[
                SceneMember(
                    id=each,
                    name=name,
                    presence=presences.get(each, "absent"),
                    has_heard=each in hearers,
                )
                for each, name in self._names.items()
            ],
            last_line=text,
            author_id=line.character_id if line and line.role == "assistant" else None,
            waiting=self._turn.automatic.waiting if self._turn.automatic else (),
            allows_self_replies=self._settings.group.allow_self_replies,
        )
        if leaf is not None and (self._turn.automatic or self._way in {"list", "pooled"}):
            scene = await self._add_speeches(scene, leaf, is_said=request.text is not None)
        return scene, line

    async def _add_speeches(self, scene: GroupScene, leaf: Message, *, is_said: bool) -> GroupScene:
        """Add who has spoken and passed. `is_said` if a new line of the user follows."""
        values = {"chat_id": leaf.chat_id, "position": leaf.position}
        rows = await self._session.execute(_SPEECHES, values)
        speeches = [each for row in rows if (each := _read_speech(row)) is not None]
        passed: list[UUID] = []
        for each in speeches:
            if not each.has_passed:
                break
            passed += [each.character_id] if each.character_id else []
        last = next((each for each in speeches if not each.by_user), None)
        spoken: set[UUID] = set()
        for each in () if is_said else speeches:
            if each.by_user:
                break
            spoken |= {each.character_id} if each.character_id else set()
        return replace(
            scene,
            last_speaker_id=last.character_id if last else None,
            spoken=frozenset(spoken),
            passed=() if is_said else passed,
        )

    async def _find_hearers(self, position: int, column: str) -> Collection[UUID]:
        """Return the members that know a line. Narrators know every public one."""
        group, narrators = self._group, self._settings.group.narrators
        played = await self._find_played(column)
        found: list[UUID] = []
        for each in self._names:
            absences = {group.chat_id: group.find_absences(each)}
            witness = Witness(each, frozenset({each, *played.get(each, ())}), absences)
            narrates = column == PUBLIC and each in narrators
            if narrates or witness.has_heard(group.chat_id, position, column):
                found.append(each)
        return found

    async def _find_played(self, column: str) -> Mapping[UUID, Sequence[UUID]]:
        """Return the entities that members play, if an audience names any entities."""
        if all(each in self._names for each in list_entities(column)):
            return {}
        campaign_id = self._chat.campaign_id
        if campaign_id is None:
            return {}
        sealer = self._identity.sealer
        played = await load_played_entities(self._session, sealer, campaign_id)
        return {each: played.find(each, name) for each, name in self._names.items()}

    async def _add_talkativeness(
        self, scene: GroupScene, candidates: Collection[UUID]
    ) -> GroupScene:
        own = self._settings.group.talkativeness
        found = await self._cards.find_talkativeness(
            self._session,
            self._identity.sealer,
            {each: self._revisions[each] for each in candidates if each not in own},
        )
        known = {**found, **own}
        return replace(
            scene,
            members=[
                replace(each, talkativeness=known.get(each.id, DEFAULT_TALKATIVENESS))
                for each in scene.members
            ],
        )

    async def _make_question(
        self, scene: GroupScene, line: Message | None, target: TurnTarget
    ) -> SpeakerQuestion:
        sealer, leaf = self._identity.sealer, target.line or target.leaf
        lines: list[str] = []
        if leaf is not None:
            rows = await chats.list_active_page(
                self._session,
                leaf.chat_id,
                before=leaf.position + 1,
                limit=SCENE_LINES,
                with_hidden=False,
            )
            lines = [_render_line(sealer, row) for row in rows if is_line(row)]
        if line is None and scene.last_line:
            lines.append(f"User: {scene.last_line[-MAX_LINE_CHARACTERS:]}")
        candidates = {each.id: each.name for each in find_candidates(scene)}
        there = [each for each in scene.members if each.presence != "absent"]
        return SpeakerQuestion(
            chat=self._chat,
            settings=self._settings,
            position=leaf.position if leaf else 0,
            candidates=candidates,
            others=[each.name for each in there if each.id not in candidates and each.has_heard],
            deaf=[each.name for each in there if not each.has_heard],
            lines=lines,
            may_be_nobody=self._turn.automatic is not None,
        )


def _read_speech(row: Row[*tuple[Any, ...]]) -> _Speech | None:
    if not row.hidden:
        return _Speech(row.role == "user", row.character_id, has_passed=False)
    if any(isinstance(each, PassedNotice) for each in decode_notices(row.notices)):
        return _Speech(by_user=False, character_id=row.character_id, has_passed=True)
    return None


def _render_line(sealer: Sealer, row: Message) -> str:
    author = sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author)
    text = sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content)
    return f"{author}: {text[-MAX_LINE_CHARACTERS:]}"


def draw_seed(chat: Chat) -> int:
    """Return the seed of a preview. It changes with the path."""
    return make_seed(chat.leaf_id or chat.id)
