"""Pieces of a group's summary: who may read them, and which of them a viewpoint gets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from backend.chats.members import Group, PresenceChange
from backend.chats.models import Presence
from backend.core.audience import GM, PUBLIC, Viewpoint, Witness, encode_audience
from backend.enrichment.summaries.pieces import Piece, Pieces

LENGTH = 60
MEMBERS = [uuid4() for _ in range(4)]

presences: st.SearchStrategy[Presence] = st.sampled_from(["present", "absent", "muted"])
changes = st.dictionaries(
    st.integers(0, LENGTH - 1), st.tuples(st.sampled_from(MEMBERS), presences), max_size=15
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    found = [PresenceChange(at, *change) for at, change in sorted(draw(changes).items())]
    return Group(uuid4(), {each: draw(st.booleans()) for each in MEMBERS}, found)


def make_piece(begin: int, end: int, audience: str = PUBLIC) -> Piece:
    return Piece(uuid4(), UUID(int=end), end, end * 10, begin, audience, 1, 100)


def watch(group: Group, member: UUID) -> Witness:
    absences = {group.chat_id: group.find_absences(member)}
    return Witness(member, frozenset({member}), absences)


def cut(group: Group, data: st.DataObject) -> list[Piece]:
    """Return public pieces as the job writes them, several for some stretches."""
    found: list[Piece] = []
    for begin, end in Pieces(group, []).stretches:
        places = range(begin, min(end, LENGTH))
        ends = data.draw(st.lists(st.sampled_from(places), max_size=2)) if places else []
        found += [make_piece(begin, each) for each in dict.fromkeys(ends)]
    return found


def combine(group: Group, pieces: list[Piece]) -> list[Piece]:
    """Add combinations until there are few pieces."""
    while (found := Pieces(group, pieces).find_combinable()) is not None:
        old, audience = found
        pieces = [*pieces, make_piece(old[0].begins_at, old[-1].position, audience)]
    return pieces


def list_positions(pieces: Sequence[Piece]) -> list[int]:
    return [place for each in pieces for place in range(each.begins_at, each.position + 1)]


@given(groups(), st.data())
def test_a_viewpoint_gets_only_what_it_witnessed(group: Group, data: st.DataObject) -> None:
    pieces = Pieces(group, combine(group, cut(group, data)))
    witnesses: list[Viewpoint] = [watch(group, each) for each in MEMBERS]
    everyone: list[Viewpoint] = [*witnesses, GM, PUBLIC]
    for viewpoint in everyone:
        chosen = pieces.choose(viewpoint)
        assert all(one.position < other.begins_at for one, other in pairwise(chosen))
        for each in pieces.list_readable(viewpoint):
            for place in list_positions([each]):
                assert not isinstance(viewpoint, Witness) or viewpoint.has_heard(
                    group.chat_id, place, PUBLIC
                )


@given(groups(), st.data())
def test_combinations_lose_nothing(group: Group, data: st.DataObject) -> None:
    """A viewpoint gets the same part of the path with combinations and without them."""
    single = cut(group, data)
    combined = combine(group, single)
    assert len(Pieces(group, combined).choose(GM)) <= max(6, len(Pieces(group, single).choose(GM)))
    witnesses: list[Viewpoint] = [watch(group, each) for each in MEMBERS]
    everyone: list[Viewpoint] = [*witnesses, GM]
    for viewpoint in everyone:
        before = set(list_positions(Pieces(group, single).choose(viewpoint)))
        assert before <= set(list_positions(Pieces(group, combined).choose(viewpoint)))


def test_own_pieces_come_before_public_ones() -> None:
    alda, bor = MEMBERS[:2]
    group = Group(uuid4(), {alda: True, bor: True})
    public, own = make_piece(0, 10), make_piece(0, 10, encode_audience([alda]))
    later = make_piece(0, 20)
    pieces = Pieces(group, [public, own, later])
    assert pieces.choose(watch(group, alda)) == [own, later]
    assert pieces.choose(watch(group, bor)) == [later]
    assert pieces.choose(GM) == [later]
    assert pieces.list_readable(watch(group, alda)) == [later, own, public]
    assert pieces.list_readable(PUBLIC) == [later, public]


def test_a_combination_without_a_private_part_is_not_used() -> None:
    """Alda's own piece has a whisper that the combination lacks."""
    alda, bor = MEMBERS[:2]
    left = PresenceChange(5, bor, "absent")
    group = Group(uuid4(), {alda: True, bor: True}, [left, PresenceChange(9, bor, "present")])
    public = [make_piece(0, 4), make_piece(6, 8), make_piece(9, 20)]
    own = make_piece(6, 8, encode_audience([alda]))
    whole = make_piece(0, 8, encode_audience([alda, uuid4()]))
    pieces = Pieces(group, [*public, own, whole])
    assert pieces.choose(watch(group, alda)) == [public[0], own, public[2]]
    assert pieces.choose(watch(group, bor)) == [public[0], public[2]]
    assert pieces.choose(GM) == [whole, public[2]]


def test_a_piece_over_a_change_that_was_unknown_is_not_read() -> None:
    """A character that was no member when the piece was written may be absent in the middle."""
    alda, bor = MEMBERS[:2]
    left = PresenceChange(5, bor, "absent")
    group = Group(uuid4(), {alda: True, bor: True}, [left, PresenceChange(9, bor, "present")])
    pieces = Pieces(group, [make_piece(0, 20)])
    assert pieces.choose(watch(group, bor)) == []
    assert pieces.choose(GM) != []
    assert pieces.find_covered(pieces.stretches[0]) == -1
