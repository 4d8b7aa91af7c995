"""Turns tool calls of a model into drafts of changes, or refuses them. No input or output.

A call changes only the fields that it names. The roster of the campaign resolves each mention: to a
known entity, to a new one, which is created once, or to several, so that the user must choose.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.ledger.changes import (
    Operations,
    State,
    apply_operations,
    build_creation,
    compare_states,
)
from backend.campaigns.ledger.items import STRUCTS, Item, Kind
from backend.campaigns.names.roster import Roster, make_slug
from backend.campaigns.play.references import get_name
from backend.campaigns.proposals.authority import Ambiguity
from backend.campaigns.rules.protocol import ToolRefusedError
from backend.campaigns.rules.state import ItemState
from backend.core.audience import Audience, decode_audience, encode_audience, may_all_know
from backend.database.base import new_id
from backend.enrichment.cleaning import clip, to_one_line
from backend.enrichment.compaction.reader import KnownWorld, build_member, find_key, list_changeable
from backend.enrichment.compaction.tools import (
    MAX_TEXT,
    UPDATERS,
    CompactionCall,
    DraftEvent,
    DraftItem,
    FieldType,
    Updater,
    build_event,
    build_schema,
    put_objectives,
    read_value,
    split_list,
    split_operations,
)
from backend.enrichment.runs.store import RefusedCall
from backend.errors import ValidationError
from backend.generation.model import ToolCall
from backend.generation.tools.arguments import InvalidCallError, read_arguments

_REFERENCE = re.compile(r"#[0-9A-F]{1,9}|[CEFHST][0-9]{1,4}")
"""The form of references, in upper case. `H` marks known events, `#12` a line."""

_USER = frozenset({"you", "user", "the user", "player", "the player", "{{user}}", "i", "me"})
"""Words for the user, who may play a character."""

_MAX_QUOTED = 60
"""Maximum characters of the model's text that a refusal quotes."""


class ItemNames:
    """Resolves references and mentions of one run.

    Args:
        known: The state that is changed.
        items: Its items and the new items of the run. The caller keeps it up to date.
        references: Items by the references that the model was shown.
        text: The lines that the model was shown. A name in them may look like a reference.
        player_id: The character of the user, if it is known.
        player_names: Names under which this character has spoken.
    """

    def __init__(
        self,
        known: KnownWorld,
        items: Mapping[UUID, ItemState],
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
        """Add an entity that the run creates."""
        self._roster.add(build_member(entity_id, self._items[entity_id].state))

    def find_reference(self, said: str) -> UUID | None:
        """Return the item that a reference names; None if `said` is a name.

        Raises `ToolRefusedError` for a reference that was not shown, or whose item was deleted.
        """
        found = self._find_shown(said)
        if found is None:
            self.check_name(said)
        return found

    def check_name(self, said: str) -> None:
        """Raise `ToolRefusedError` if a text is a reference and not a name in the story."""
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
        """Return the entities that a name may mean; none for a reference."""
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
                quoted = mention.strip()[:_MAX_QUOTED]
                raise ToolRefusedError(f"{quoted} is a {held.kind}: name a person, place or thing.")
            found = (item_id,)
        if not found:
            raise ToolRefusedError(f"There is no {mention[:_MAX_QUOTED]!r}: record them first.")
        return found

    def find_fact(self, said: str) -> UUID | None:
        """Return the fact that a reference names; None if `said` is empty.

        Raises `ToolRefusedError` for anything else.
        """
        if not said.strip():
            return None
        found = self._find_shown(said)
        if found is None or self._items[found].kind != "fact":
            quoted = said.strip()[:_MAX_QUOTED]
            raise ToolRefusedError(f"`supersedes` must be the reference of a fact, not {quoted!r}.")
        return found

    def spell_person(self, said: str) -> str:
        """Return the name of a person, given by reference, by name, or as the user.

        Raises `ToolRefusedError` for a reference that was not shown.
        """
        if self.find_reference(said) is not None or self.resolve(said) != (self._player_id,):
            return self.spell(said)
        return get_name(self._items[self._player_id].state) if self._player_id else said

    def spell(self, text: str) -> str:
        """Return a text; instead of a reference, the name of its item.

        Raises `ToolRefusedError` for the reference of an item that was deleted.
        """
        found = self._find_shown(text)
        return text if found is None else get_name(self._items[found].state)

    def _find_shown(self, said: str) -> UUID | None:
        """Return the item of a reference that was shown; None if there was none.

        Raises `ToolRefusedError` if the item was deleted, or hidden from the audience, while the
        model was working.
        """
        mark = said.strip().upper()
        found = self._references.get(mark)
        if found is not None and found not in self._items:
            raise ToolRefusedError(f"{mark} no longer exists.")
        return found


MAX_NAME = 200
MAX_BECAUSE = 300
MAX_DRAFTS = 200
"""Maximum changes of one run."""

_PEOPLE = frozenset({"pc", "npc", "faction"})
_NAMES = frozenset({"name", "title", "aliases"})


class Drafter:
    """Reads calls in order. Each sees the state that the calls before it have left.

    Args:
        known: The state that is changed.
        references: Items by the references that the model was shown.
        positions: Positions of the messages, by the numbers that the model was shown.
        audience: The audience of the changes, in the form of the database column.
        text: See `ItemNames`, also for the player.
    """

    def __init__(
        self,
        known: KnownWorld,
        references: Mapping[str, UUID],
        positions: Mapping[int, int],
        *,
        audience: str,
        text: str,
        player_id: UUID | None = None,
        player_names: Collection[str] = (),
    ) -> None:
        self.drafts: list[DraftItem] = []
        self.events: list[DraftEvent] = []
        self._known = known
        self._positions = positions
        self._audience = audience
        self._items = dict(known.items)
        self._made_at: dict[UUID, int] = {}
        self._names = ItemNames(
            known,
            self._items,
            references,
            text=text,
            player_id=player_id,
            player_names=player_names,
        )

    def use(self, call: ToolCall) -> RefusedCall | None:
        """Add the changes of a call. If it is refused, return the reason and change nothing."""
        updater = UPDATERS.get(call.name)
        try:
            self._draft(updater, call)
        except (ToolRefusedError, InvalidCallError, ValidationError) as error:
            reason = error.detail if isinstance(error, ValidationError) else str(error)
            return RefusedCall(tool=call.name[:60], reason=clip(to_one_line(reason), MAX_TEXT))
        return None

    def _draft(self, updater: Updater | None, call: ToolCall) -> None:
        if updater is None:
            there = ", ".join(UPDATERS)
            raise ToolRefusedError(call.problem or f"There is no such tool. There are {there}.")
        if len(self.drafts) >= MAX_DRAFTS:
            raise ToolRefusedError("There are too many changes.")
        asked = read_arguments(call.arguments, CompactionCall, build_schema(updater, {}))
        positions = self._read_sources(asked)
        if updater.kind == "event":
            self._add_event(asked, positions)
        elif updater.kind == "fact":
            self._add_fact(asked, positions[-1])
        else:
            world, rest = split_operations(asked) if "day" in updater.fields else (None, asked)
            if world is None:
                self._update(updater, asked, positions[-1])
            else:
                self._change_world(updater, world, rest, positions[-1])

    def _change_world(
        self, updater: Updater, world: CompactionCall, rest: CompactionCall, position: int
    ) -> None:
        """Change the day or time of the world and the place of a call: both or none."""
        campaign_id, count = self._known.campaign_id, len(self.drafts)
        before = self._items[campaign_id]
        self._names.find_reference(rest.ref)
        self._change(updater, world, campaign_id, position)
        if rest.set or rest.add or rest.remove:
            try:
                self._update(updater, rest, position)
            except (ToolRefusedError, ValidationError):
                self._items[campaign_id] = before
                del self.drafts[count:]
                raise

    def _read_sources(self, asked: CompactionCall) -> list[int]:
        """Return the positions of the lines that a call comes from; the last if it names none.

        Raises `ToolRefusedError` if it names others alone.
        """
        said = [str(each).strip().lstrip("#") for each in asked.source_turns]
        numbers = [int(each) for each in said if each.isdecimal() and len(each) < 10]  # noqa: PLR2004
        found = sorted({self._positions[each] for each in numbers if each in self._positions})
        if said and not found:
            first, last = min(self._positions), max(self._positions)
            raise ToolRefusedError(f"`source_turns` are new lines: from #{first} to #{last}.")
        return found or [max(self._positions.values())]

    def _update(self, updater: Updater, asked: CompactionCall, position: int) -> None:
        found = self._find(updater, asked)
        if len(found) == 1:
            self._change(updater, asked, found[0], position)
        elif not found:
            self._create(updater, asked, position)
        else:
            operations, _ = self._build_operations(updater, asked, {})
            mention = to_one_line(asked.name or asked.ref)
            self._add(updater.kind, new_id(), operations, asked, position, _unclear(mention, found))

    def _find(self, updater: Updater, asked: CompactionCall) -> Sequence[UUID]:
        """Return the items that a call may mean: several if it is ambiguous, none for a new one."""
        named = self._names.find_reference(asked.ref or asked.name)
        if named is not None:
            self._check_kind(updater, named)
            return (named,)
        self._names.check_name(asked.name)
        if updater.kind == "scene":
            return (self._known.scene_id,) if self._known.scene_id else self._made("scene")
        name = to_one_line(asked.name or asked.ref)
        if not name:
            raise ToolRefusedError("Say by `ref` or `name` what it is about.")
        if updater.kind != "entity":
            wanted = make_slug(name)
            return [
                one
                for one, held in self._items.items()
                if held.kind == updater.kind and make_slug(get_name(held.state)) == wanted
            ][:1]
        found = self._names.resolve(name, updater.subkinds[0])
        if not found and updater.subkinds[0] in _PEOPLE:
            found = self._names.resolve(name)
        if len(found) == 1:
            self._check_kind(updater, found[0])
        return found

    def _check_kind(self, updater: Updater, item_id: UUID) -> None:
        held = self._items[item_id]
        kind = held.state.get("kind", held.kind)
        if held.kind != updater.kind or (
            held.kind == "entity"
            and kind not in updater.subkinds
            # The call says clearly whom it means; the campaign lists the candidates.
            and not {kind, updater.subkinds[0]} <= _PEOPLE
        ):
            raise ToolRefusedError(f"{get_name(held.state)} is known already: it is a {kind}.")

    def _change(
        self, updater: Updater, asked: CompactionCall, item_id: UUID, position: int
    ) -> None:
        held = self._items[item_id]
        audience = encode_audience(cast("Audience", held.state.get("audience", "public")))
        if not may_all_know(audience, self._audience):
            raise ToolRefusedError("Not everyone who knows of the item may know this.")
        operations, unclear = self._build_operations(updater, asked, held.state)
        operations.set.pop("kind", None)
        if not (operations.set or operations.add or operations.remove or unclear):
            raise ToolRefusedError("The call changes nothing.")
        after = self._apply_checked(held.kind, held.state, operations)
        position = max(position, self._made_at.get(item_id, position))
        if compare_states(held.state, after).list_fields():  # no draft if nothing would change
            self._items[item_id] = ItemState(held.kind, after)
            self._add(held.kind, item_id, operations, asked, position)
        if unclear is not None:
            rest = Operations(set={unclear.field: None})
            self._add(held.kind, item_id, rest, asked, position, unclear)

    def _create(self, updater: Updater, asked: CompactionCall, position: int) -> None:
        kind = cast("Kind", updater.kind)
        name = clip(to_one_line(asked.name or asked.ref), MAX_NAME)
        first: State = {"title" if kind in {"thread", "scene"} else "name": name}
        if updater.subkinds:
            first["kind"] = updater.subkinds[0]
        operations, unclear = self._build_operations(updater, asked, first)
        before = {**first, "audience": msgspec.to_builtins(decode_audience(self._audience))}
        fields = apply_operations(kind, before, operations)
        item = _convert(kind, fields)
        made = build_creation(item)
        item_id = new_id()
        after = self._apply_checked(kind, {}, made)
        self._items[item_id] = ItemState(kind, after)
        self._made_at[item_id] = position
        self._add(kind, item_id, made, asked, position)
        if kind == "entity":
            self._names.add(item_id)
        if unclear is not None:
            rest = Operations(set={unclear.field: None})
            self._add(kind, item_id, rest, asked, position, unclear)

    def _add_fact(self, asked: CompactionCall, position: int) -> None:
        """Add a fact, unless the same fact is already known."""
        text = clip(to_one_line(str(asked.set.get("text") or "")), MAX_TEXT)
        if not text:
            raise ToolRefusedError("A fact is a sentence, in `set.text`.")
        about, unclear = None, None
        if mention := to_one_line(asked.name or asked.ref):
            found = self._names.find_entities(mention)
            about = found[0] if len(found) == 1 else None
            unclear = _unclear(mention, found, "about_id") if len(found) > 1 else None
        old = self._names.find_fact(str(asked.set.get("supersedes") or ""))
        same = (
            held.state["text"].casefold() == text.casefold()
            and held.state.get("about_id") == (str(about) if about else None)
            for held in self._items.values()
            if held.kind == "fact"
        )
        if any(same):
            return
        position = max(position, self._made_at.get(about, position) if about else position)
        fact = STRUCTS["fact"](text=text, about_id=about, audience=decode_audience(self._audience))  # type: ignore[call-arg]
        made, fact_id = build_creation(fact), new_id()
        after = self._apply_checked("fact", {}, made)
        if unclear is None:
            self._items[fact_id] = ItemState("fact", after)
        self._add("fact", fact_id, made, asked, position, unclear, replaces=old)

    def _add_event(self, asked: CompactionCall, positions: Sequence[int]) -> None:
        event = build_event(asked, positions, clip(to_one_line(asked.because), MAX_BECAUSE))
        fields = msgspec.structs.replace(
            event.fields,
            where=self._names.spell(event.fields.where),
            who=[self._names.spell_person(name) for name in event.fields.who],
        )
        self.events.append(replace(event, fields=fields))

    def _build_operations(
        self, updater: Updater, asked: CompactionCall, state: State
    ) -> tuple[Operations, Ambiguity | None]:
        """Return the operations of a call's fields, and an ambiguous reference in them."""
        attributes = list_changeable(self._known.rules, state) if state.get("kind") else {}
        fields: dict[str, FieldType] = dict(updater.fields)
        if updater.kind == "entity":
            fields |= attributes
        operations, unclear = Operations(), None
        for how in ("set", "add", "remove"):
            given = cast("dict[str, Any]", getattr(asked, how))
            for name, value in given.items():
                kind = fields.get(name)
                if kind is None:
                    there = ", ".join(fields)
                    raise ToolRefusedError(
                        f"There is no {name[:60]!r} to change; there is: {there}."
                    )
                is_list = kind in {"list", "references"}
                # Setting a list adds to it, so that members which the call does not name are kept.
                to = operations.add if is_list and how == "set" else getattr(operations, how)
                if name in {"objectives", "done"}:
                    put_objectives(operations, name, split_list(value), is_gone=how == "remove")
                elif kind in {"reference", "references"}:
                    mentions = split_list(value)
                    ids, doubt = self._resolve_mentions(mentions, find_key(updater, name))
                    unclear = unclear or doubt
                    if ids:
                        to[find_key(updater, name)] = ids if is_list else ids[0]
                else:
                    to[find_key(updater, name)] = self._read(
                        name, read_value(name, kind, value, how)
                    )
        return operations, unclear

    def _read(self, name: str, value: Any) -> Any:
        """Return a field's value with names instead of references."""
        texts = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
        for text in texts:
            if isinstance(text, str) and name in _NAMES:
                self._names.check_name(text)
        spelled = [self._names.spell(each) if isinstance(each, str) else each for each in texts]
        return spelled if isinstance(value, list) else spelled[0]

    def _resolve_mentions(
        self, mentions: Sequence[str], key: str
    ) -> tuple[list[str], Ambiguity | None]:
        """Return the ids of mentioned entities, without ambiguous ones."""
        ids: list[str] = []
        for mention in mentions:
            found = self._names.find_entities(mention)
            if len(found) > 1:
                if key == "present":
                    raise ToolRefusedError(f"It is not clear who is meant by {mention[:60]!r}.")
                return ids, _unclear(mention, found, key)
            ids.append(str(found[0]))
        return ids, None

    def _made(self, kind: Kind) -> list[UUID]:
        return [one for one in self._made_at if self._items[one].kind == kind][:1]

    def _apply_checked(self, kind: Kind, before: State, operations: Operations) -> State:
        after = apply_operations(kind, before, operations)
        self._known.rules.validate(kind, before, after)
        return after

    def _add(
        self,
        kind: Any,
        item_id: UUID,
        operations: Operations,
        asked: CompactionCall,
        position: int,
        unclear: Ambiguity | None = None,
        *,
        replaces: UUID | None = None,
    ) -> None:
        because = clip(to_one_line(asked.because), MAX_BECAUSE)
        # A change that names a new item counts only as long as that item exists.
        made = [
            at
            for value in operations.set.values()
            if isinstance(value, str)
            for one, at in self._made_at.items()
            if value == str(one)
        ]
        self.drafts.append(
            DraftItem(
                kind=kind,
                item_id=item_id,
                operations=operations,
                position=max([position, *made]),
                because=because,
                replaces=replaces,
                unclear=unclear,
            )
        )


def _unclear(mention: str, found: Sequence[UUID], field: str = "") -> Ambiguity:
    return Ambiguity(mention=clip(mention, MAX_NAME), candidates=list(found), field=field)


def _convert(kind: Kind, fields: State) -> Item:
    try:
        return msgspec.convert(fields, STRUCTS[kind], strict=True)
    except msgspec.ValidationError as error:
        raise ToolRefusedError(f"{error}.") from None
