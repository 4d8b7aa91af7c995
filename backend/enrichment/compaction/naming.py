"""The items that a compactor's calls name: by reference, by name, or as the user."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from backend.campaigns.play.references import Held, called
from backend.campaigns.play.tools import ToolRefusedError
from backend.campaigns.roster import Roster
from backend.enrichment.compaction.known import KnownWorld, member_of

_REFERENCE = re.compile(r"#[0-9A-F]{1,9}|[CEFHST][0-9]{1,4}")
"""The form of references, in capitals. `H` are known events, `#12` is a line."""

_USER = frozenset({"you", "user", "the user", "player", "the player", "{{user}}", "i", "me"})
"""Words for the user, where the user is a character."""

_SHOWN = 60
"""Characters of a model's text that an answer quotes."""


class ItemNames:
    """Resolves references and mentions of one run.

    Args:
        known: The state that is changed.
        items: Its items, and those that the run makes: kept up to date by the caller.
        references: Items by the references that the model was shown.
        text: The lines that the model was shown. A name of theirs may look like a reference.
        player_id: The character that the user is, if that is clear.
        player_names: Names under which this character has spoken.
    """

    def __init__(
        self,
        known: KnownWorld,
        items: Mapping[UUID, Held],
        references: Mapping[str, UUID],
        *,
        text: str,
        player_id: UUID | None,
        player_names: Collection[str],
    ) -> None:
        self._items = items
        self._references = references
        self._text = text
        self._roster = Roster(known.members(), present=known.present)
        self._player_id = player_id if player_id in items else None
        self._player_names = _USER.union(each.casefold() for each in player_names)

    def add(self, entity_id: UUID) -> None:
        """Take in an entity that the run makes."""
        self._roster.add(member_of(entity_id, self._items[entity_id].state))

    def find_reference(self, said: str) -> UUID | None:
        """Return the item that a reference names; None if `said` is a name.

        Raises `ToolRefusedError` for a reference that was not shown, or whose item was deleted.
        """
        found = self._find_shown(said)
        if found is None:
            self.check_name(said)
        return found

    def check_name(self, said: str) -> None:
        """Raise `ToolRefusedError` for a text that is a reference, and no name of the story."""
        mark = said.strip()
        if not _REFERENCE.fullmatch(mark.upper()):
            return
        is_told = not mark.startswith("#") and re.search(rf"\b{mark}\b", self._text)
        if not is_told:
            raise ToolRefusedError(
                f"There is no {mark}. Give a reference that you were shown. Somebody or something "
                "new has no reference: give a `name` and no `ref`."
            )

    def resolve(self, name: str, kind: str | None = None) -> Sequence[UUID]:
        """Return the entities that a name may mean. No reference is one."""
        found = self._roster.resolve(name, kind)
        is_user = self._player_id is not None and name.strip().casefold() in self._player_names
        return (self._player_id,) if is_user and not found and self._player_id else found

    def find_entities(self, mention: str) -> Sequence[UUID]:
        """Return the entities that a reference or a name may mean.

        Raises `ToolRefusedError` if there are none.
        """
        item_id = self.find_reference(mention)
        if item_id is None:
            found = self.resolve(mention)
        else:
            held = self._items[item_id]
            if held.kind != "entity":
                raise ToolRefusedError(
                    f"{mention.strip()[:_SHOWN]} is a {held.kind}: name a person, place or thing."
                )
            found = (item_id,)
        if not found:
            raise ToolRefusedError(f"There is no {mention[:_SHOWN]!r}: record them first.")
        return found

    def find_fact(self, said: str) -> UUID | None:
        """Return the fact that a reference names; None if `said` is empty.

        Raises `ToolRefusedError` for anything else.
        """
        if not said.strip():
            return None
        found = self._find_shown(said)
        if found is None or self._items[found].kind != "fact":
            raise ToolRefusedError(
                f"`supersedes` is the reference of a fact: {said.strip()[:_SHOWN]!r} is none."
            )
        return found

    def spell_person(self, said: str) -> str:
        """Return the name of a person, given by reference, by name, or as the user.

        Raises `ToolRefusedError` for a reference that was not shown.
        """
        if self.find_reference(said) is not None or self.resolve(said) != (self._player_id,):
            return self.spell(said)
        return called(self._items[self._player_id].state) if self._player_id else said

    def spell(self, text: str) -> str:
        """Return a text; instead of a reference, the name of its item.

        Raises `ToolRefusedError` for the reference of an item that was deleted.
        """
        found = self._find_shown(text)
        return text if found is None else called(self._items[found].state)

    def _find_shown(self, said: str) -> UUID | None:
        """Return the item that a reference was shown for; None if there was none.

        Raises `ToolRefusedError` if the item is no longer in the state: it was deleted, or hidden
        from the audience, while the model was working.
        """
        mark = said.strip().upper()
        found = self._references.get(mark)
        if found is not None and found not in self._items:
            raise ToolRefusedError(f"{mark} no longer exists.")
        return found
