"""Which entity of a campaign a mention means: by name, title, role, or a spelling near it.

Two entities made one are worse than one that is there twice, so a mention that says something of
somebody which does not fit (another first name, a woman's title, "the younger", "Holt's sister")
is not theirs. Words are looked up in an index: what a mention costs does not grow with the roster,
but with those who share its words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from backend.campaigns.name_forms import words_of
from backend.campaigns.roster_people import People
from backend.campaigns.roster_things import Things
from backend.campaigns.roster_words import NEAR, Member, WordIndex

__all__ = ["PEOPLE", "Member", "Roster"]

PEOPLE = frozenset({"pc", "npc"})


class Roster:
    """The entities of a campaign, by what they may be called."""

    def __init__(self, members: Iterable[Member], *, present: Collection[UUID] = ()) -> None:
        """Take the entities that may be meant; those who are `present` are, where several may."""
        self._members: dict[UUID, Member] = {}
        self._indexes: dict[str, WordIndex] = {}
        self._present = frozenset(present)
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Have an entity found from now on, also by names that it did not have before."""
        self._members[member.id] = member
        kind = "person" if member.kind in PEOPLE else member.kind
        if kind not in self._indexes:
            self._indexes[kind] = People() if kind == "person" else Things()
        self._indexes[kind].add(member)

    def resolve(self, mention: str, kind: str | None = None) -> Sequence[UUID]:
        """The entity that is meant: one, none (it is new), or several where it is not clear.

        A `kind` is that of entities; players' characters and other people are found as one.
        """
        if kind is None:
            indexes = list(self._indexes.values())
        else:
            one = self._indexes.get("person" if kind in PEOPLE else kind)
            indexes = [one] if one else []
        words = words_of(mention)
        found = [answer for index in indexes if (answer := index.find(words))[1]]
        surest = min((rank for rank, _ in found), default=NEAR)
        return self._narrowed([each for rank, ids in found if rank == surest for each in ids])

    def _narrowed(self, found: Sequence[UUID]) -> Sequence[UUID]:
        """Those who are present, or where they are, if that leaves any."""
        found = list(dict.fromkeys(found))
        if len(found) < 2:  # noqa: PLR2004  # one
            return found
        if here := [each for each in found if each in self._present]:
            return here
        places = {self._members[each].place_id for each in self._present & self._members.keys()}
        places -= {None}
        return [each for each in found if self._members[each].place_id in places] or found
