"""Choose the next speaker of a group. Uses no database, clock or model.

A draw depends only on its seed, which is derived from the turn's id: `make_seed`. A request that is
repeated with the same `turn_id` therefore gets the same speaker.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from backend.campaigns.names.name_forms import (
    TITLES,
    transliterate,
    yield_case_forms,
    yield_name_parts,
)
from backend.campaigns.names.roster import NameIndex
from backend.campaigns.names.words import ARTICLES, CONNECTORS, WORD, to_plain
from backend.chats.models import Presence
from backend.chats.schemas import DEFAULT_TALKATIVENESS, NextSpeaker
from backend.core.reasons import Reason

PASS_MARK = "[pass]"  # noqa: S105  # no password
"""The answer of a character that has nothing to say in a reply that follows by itself."""

MIN_PASSES = 2
"""A conversation is not over before so many characters have passed in a row."""

MAX_NAME_CHARACTERS = 200
"""Maximum number of characters of a name that are searched for."""

_MIN_PART = 2
_NO_NAMES = ARTICLES | CONNECTORS
_WEAK_ROLES = frozenset({"honour", "kin"})
"""Titles such as "Sir" and "Mother", which are also said to others. They are no name alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneMember:
    """A member of a chat. `has_heard` if it knows the last line."""

    id: UUID
    name: str
    talkativeness: float = DEFAULT_TALKATIVENESS
    presence: Presence = "present"
    has_heard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScene:
    """The members of a chat and its last lines.

    Attributes:
        members: The members in order.
        last_line: The text of the last line.
        author_id: The member that wrote the last line. None if the user wrote it.
        last_speaker_id: The member that spoke or passed last.
        spoken: The members that have spoken or passed since the user's last line.
        waiting: The members that an earlier line has named and that have not spoken since, in
            order.
        passed: The members that have passed since the last line, once for each time.
        allows_self_replies: True if the author of the last line may be chosen again.
    """

    members: Sequence[SceneMember]
    last_line: str = ""
    author_id: UUID | None = None
    last_speaker_id: UUID | None = None
    spoken: frozenset[UUID] = frozenset()
    waiting: Sequence[UUID] = ()
    passed: Sequence[UUID] = ()
    allows_self_replies: bool = False


class SpeakerChoice(NamedTuple):
    """The chosen member, and the reasons for it."""

    character_id: UUID
    reasons: tuple[Reason, ...]


def make_seed(turn_id: UUID) -> int:
    """Return the seed of a turn's draw: 64 bits of a plain digest of its id.

    A plain digest is sufficient, because a user may know the result of a draw.
    """
    data = hashlib.blake2b(turn_id.bytes, digest_size=8, person=b"next speaker").digest()
    return int.from_bytes(data)


def find_candidates(scene: GroupScene) -> list[SceneMember]:
    """Return the members that may speak unasked, in order.

    They are present and know the last line. Its author is left out unless self-replies are allowed
    or no one else is left, and so are members that have passed, as long as others have not.
    """
    found = [each for each in scene.members if each.presence == "present" and each.has_heard]
    if not scene.allows_self_replies:
        found = [each for each in found if each.id != scene.author_id] or found
    return [each for each in found if each.id not in scene.passed] or found


def is_monologue(scene: GroupScene) -> bool:
    """True if only the author of the last line could answer it, and should not."""
    found = find_candidates(scene)
    is_alone = [each.id for each in found] == [scene.author_id]
    return is_alone and not scene.allows_self_replies


def is_silent(scene: GroupScene) -> bool:
    """True if all candidates have passed since the last line, at least two times in all."""
    has_asked_all = all(each.id in scene.passed for each in find_candidates(scene))
    return has_asked_all and len(scene.passed) >= MIN_PASSES


def needs_draw(scene: GroupScene, way: NextSpeaker) -> bool:
    """True if the choice depends on talkativeness."""
    if way not in {"mention", "model"}:
        return False
    found = find_candidates(scene)
    return len(found) > 1 and not _find_named(scene, found, found)


def choose_speaker(scene: GroupScene, way: NextSpeaker, seed: int) -> SpeakerChoice | None:
    """Return the next speaker. None if no one may speak, or if the user chooses `by_hand`.

    The draw by talkativeness is that of SillyTavern: in a random order, each candidate passes with
    its talkativeness, and the first one that passes speaks. If none passes, one with a
    talkativeness above 0 speaks, or else any. For `model`, which chooses elsewhere, this is the
    choice without an answer of the model: the one by `mention`.
    """
    found = find_candidates(scene)
    if not found or way == "by_hand":
        return None
    draw = random.Random(seed)  # noqa: S311  # a conversation is no secret
    match way:
        case "list":
            chosen, kind = _find_next(scene, found), Reason("speaker_listed")
        case "pooled":
            chosen, kind = _draw_from_pool(scene, found, draw)
        case _:
            chosen, kind = _choose_by_mention(scene, found, draw)
    if len(found) == 1 and kind.kind != "speaker_named":
        kind = Reason("speaker_alone")
    return SpeakerChoice(chosen.id, (kind,))


def find_named(scene: GroupScene) -> list[UUID]:
    """Return the candidates that the last line names, in the order of mention."""
    found = find_candidates(scene)
    return [each.id for each in _find_named(scene, found, found)]


def _find_next(scene: GroupScene, found: Sequence[SceneMember]) -> SceneMember:
    """Return the first candidate after the last speaker, in the order of all members."""
    order = [each.id for each in scene.members]
    last_id = scene.last_speaker_id
    last = order.index(last_id) if last_id is not None and last_id in order else -1
    return min(found, key=lambda each: (order.index(each.id) - last - 1) % len(order))


def _draw_from_pool(
    scene: GroupScene, found: Sequence[SceneMember], draw: random.Random
) -> tuple[SceneMember, Reason]:
    if pool := [each for each in found if each.id not in scene.spoken]:
        return draw.choice(pool), Reason("speaker_pooled")
    others = [each for each in found if each.id != scene.last_speaker_id]
    return draw.choice(others or found), Reason("speaker_redrawn")


def _choose_by_mention(
    scene: GroupScene, found: Sequence[SceneMember], draw: random.Random
) -> tuple[SceneMember, Reason]:
    order = list(found)
    draw.shuffle(order)
    if named := _find_named(scene, order, found):
        return named[0], Reason("speaker_named")
    by_id = {each.id: each for each in found}
    if waiting := next((by_id[each] for each in scene.waiting if each in by_id), None):
        return waiting, Reason("speaker_waiting")
    reason = Reason("speaker_drawn")
    for each in order:
        if draw.random() < each.talkativeness:
            return each, reason
    return next((each for each in order if each.talkativeness > 0), order[0]), reason


def _find_named(
    scene: GroupScene, order: Sequence[SceneMember], found: Sequence[SceneMember]
) -> list[SceneMember]:
    """Return the candidates that the last line names. `order` decides about shared names.

    The names of all members are searched for, because the longest name counts: "Anna Maria" is not
    the candidate Maria.
    """
    if not scene.last_line:
        return []
    ids = {each.id for each in found}
    members = [*order, *(each for each in scene.members if each.id not in ids)]
    index = NameIndex((each.id, name) for each in members for name in _yield_names(each.name))
    by_id = {each.id: each for each in found}
    return [by_id[each] for each in index.find(scene.last_line) if each in by_id]


def _yield_names(name: str) -> Iterator[str]:
    """Yield a name, its parts and their forms, as users write them."""
    name = to_plain(name[:MAX_NAME_CHARACTERS]).strip()
    yield name
    for match in WORD.finditer(name):
        part = match[0].casefold()
        title = TITLES.get(part)
        if len(part) < _MIN_PART or part in _NO_NAMES or (title and title.role in _WEAK_ROLES):
            continue
        yield part
        yield from yield_name_parts(part)
        if part.isascii():
            continue
        yield from yield_case_forms(part)
        if len(latin := transliterate(part)) >= _MIN_PART:
            yield latin
