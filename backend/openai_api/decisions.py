"""Decides the kind of a request: a turn, a swipe, a continuation, or a quiet request.

A new line of the user makes a turn. Otherwise the instruction after the last line decides: nudges
and instructions of the chat's previous turn belong to the conversation, other instructions are
quiet. Streaming decides nothing. If the last message is the user's and nothing is known about it,
the request is a turn, because a lost line is worse than a stored instruction.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from backend.openai_api.contracts import (
    ChatPlacement,
    ClientState,
    Decision,
    Instruction,
    Line,
    SentConversation,
    StoreChoice,
)
from backend.openai_api.models import RequestKind, RequestReason, RuledKind
from backend.openai_api.quiet_forms import find_list_form, is_connection_test
from backend.openai_api.reading import MAX_PIECES, iterate_paragraphs
from backend.vault.sealing import Sealer, digest

_KEY_PURPOSE = "client-instructions"
_DIGITS = re.compile(r"\d+")
_MAX_IDENTIFIED = 4_000
_MIN_IDENTIFIED = 60
_MIN_HEAD = 20
_MAX_HEAD = 200
_MAX_EARLIER_LINES = 10
_RAW_TASK = 2
"""Messages of a list that has a task and its text."""


def digest_instruction(sealer: Sealer, text: str) -> bytes:
    """Return the digest by which an instruction is recognised.

    It covers the last lines of the text, because clients join an instruction with lore and notes
    before it that change. White space, case and numbers do not matter, so that times may change.
    """
    return _Digests(sealer).make(text)


def decide(
    reading: SentConversation,
    placement: ChatPlacement,
    *,
    sealer: Sealer,
    state: ClientState | None = None,
    rules: Mapping[bytes, RuledKind] | None = None,
    store: StoreChoice | None = None,
    retries: int = 0,
) -> Decision:
    """Return the kind of a request, its reason, and the placement to apply.

    Args:
        reading: The list of the request.
        placement: The place of its lines in the stored chats.
        sealer: The sealer of the account.
        state: The state after the chat's previous turn. None if no client has played the chat.
        rules: The user's corrections, by the digest of an instruction.
        store: The header `X-Talekeeper-Store`, which precedes everything else.
        retries: The header `x-stainless-retry-count`.
    """
    case = _Case(reading, placement, _Digests(sealer), state or ClientState())
    rule = (rules or {}).get(case.digests.make(case.subject)) if case.subject else None
    quiet = case.find_quiet_reason()
    if store == "never":
        quiet = "header_never"
    elif store is None and rule == "quiet":
        quiet = "rule"
    is_forced = store == "always" or (store is None and rule == "turn")
    if quiet is not None and not is_forced:
        return Decision(kind="quiet", reason=quiet, placement=placement, instruction=case.subject)
    decision = case.decide()
    if quiet is not None:
        decision = replace(decision, reason="header_always" if store else "rule")
    return _join_retry(decision) if retries > 0 else decision


def build_state(
    reading: SentConversation,
    decision: Decision,
    *,
    sealer: Sealer,
    previous: ClientState | None = None,
    hidden: Sequence[UUID] = (),
) -> ClientState:
    """Return the state to store after a request that was not quiet.

    Only a turn and a swipe show which instructions a turn has.
    """
    previous = previous or ClientState()
    if decision.kind not in ("turn", "swipe"):
        return msgspec.structs.replace(previous, hidden=tuple(hidden))
    digests = _Digests(sealer)
    known = previous.instructions
    instructions = [
        found
        for each in reading.instructions
        if (found := digests.make(each.text)) in known or each.kind == "other"
    ]
    last = next((line for line in reversed(reading.lines) if line.role == "user"), None)
    parts = [digests.make(part) for part in _split_parts(last)] if last else []
    tail = decision.placement.tail
    if tail and last and tail[-1].place == last.place:
        kept = {digests.make(part) for part in _split_parts(tail[-1])}
        instructions += [part for part in parts if part not in kept]
    instructions += [part for part in parts if part in known]
    if len(parts) == 1:
        pieces = previous.pieces if parts[0] in previous.pieces else ()
    else:
        pieces = tuple(parts)
    return ClientState(
        instructions=tuple(dict.fromkeys(instructions)),
        pieces=pieces,
        prefill=digests.make(decision.prefill) if decision.prefill else None,
        hidden=tuple(hidden),
    )


class _Digests:
    """Digests with one derived key."""

    def __init__(self, sealer: Sealer) -> None:
        self._key = sealer.derive_key(_KEY_PURPOSE)

    def make(self, text: str) -> bytes:
        return digest(self._key, _identify(text).encode(errors="surrogatepass"))


def _identify(text: str) -> str:
    """Return the last lines of a text that have 60 characters together, normalised."""
    found: list[str] = []
    size = 0
    for line in reversed(text[-_MAX_IDENTIFIED:].split("\n")):
        if size >= _MIN_IDENTIFIED:
            break
        if words := " ".join(line.split()):
            found.append(_DIGITS.sub("0", words.casefold()))
            size += len(words)
    return "\n".join(found)


def _join_retry(decision: Decision) -> Decision:
    """Join the turn of the first attempt, unless its lines have never arrived."""
    is_stored = decision.placement.chat_id is not None and not decision.placement.tail
    if is_stored and decision.kind in ("turn", "swipe", "continue"):
        return replace(decision, kind="repeat", reason="retry")
    return decision


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of a list, without the beginning of a reply and without merged notes.

    Attributes:
        placement: The placement of the lines that remain.
        last: The last of these lines.
        is_new: True if nothing stored matches it.
    """

    placement: ChatPlacement
    last: Line | None
    is_new: bool
    prefill: str = ""
    instruction: Instruction | None = None


@dataclass(frozen=True, slots=True)
class _SplitLine:
    """A line without notes, and the last of its notes. The line is None if it was only notes."""

    line: Line | None
    note: Instruction | None = None


class _Case:
    """One request, with its place and the state of its chat."""

    def __init__(
        self,
        reading: SentConversation,
        placement: ChatPlacement,
        digests: _Digests,
        state: ClientState,
    ) -> None:
        self.digests = digests
        self._reading = reading
        self._state = state
        self._is_new_chat = placement.chat_id is None
        if self._is_new_chat:
            placement = replace(placement, tail=reading.lines)
        self._ending = self._find_ending(placement)
        self.subject = self._find_subject()

    def find_quiet_reason(self) -> RequestReason | None:
        """Return the reason for which the request is quiet, or None if it is not."""
        reading, instruction = self._reading, self._ending.instruction
        if self._is_new_chat and is_connection_test(reading.messages):
            return "connection_test"
        if find_list_form(reading.messages) is not None:
            return "known_quiet_form"
        if instruction is None or self._is_known(instruction):
            return None
        if instruction.kind == "quiet":
            return "known_quiet_form"
        if instruction.kind == "other" and not self._is_new_chat and not self._is_unanswered():
            return "unknown_instruction"
        return None

    def decide(self) -> Decision:
        ending = self._ending
        last, instruction = ending.last, ending.instruction
        kind = instruction.kind if instruction and not self._is_known(instruction) else "other"
        if kind == "impersonate":
            return self._make(
                "impersonate", "impersonate_nudge", replace(ending.placement, tail=())
            )
        if kind == "continue":
            return self._continue_by_nudge()
        speaker = self._find_speaker()
        is_reply = last is not None and last.role == "assistant"
        if is_reply and instruction is None and not ending.is_new and not ending.prefill:
            if len(self._reading.members) > 1:
                return self._answer("group_reply", speaker)
            return self._continue_reply("ends_with_reply")
        return self._answer(self._find_turn_reason(speaker), speaker)

    def _find_turn_reason(self, speaker: str) -> RequestReason:
        last = self._ending.last
        if self._is_new_chat:
            return "new_chat"
        if last is not None and last.role == "user":
            return "new_line" if self._ending.is_new else "answer_missing"
        if speaker:
            return "group_nudge"
        return "post_history" if self._ending.instruction else "prefill"

    def _answer(self, reason: RequestReason, speaker: str) -> Decision:
        placement = self._ending.placement
        is_missing = not placement.tail and bool(placement.rest)
        reason = "reply_missing" if is_missing else reason
        return self._make("swipe" if is_missing else "turn", reason, placement, speaker)

    def _continue_by_nudge(self) -> Decision:
        """Continue the last reply.

        `send_if_empty` puts a line between the reply and the nudge. If the last line is the user's,
        the text belongs to that line, and the next request brings it as an edit.
        """
        placement, last = self._ending.placement, self._ending.last
        speaker = self._find_speaker()
        if last is not None and last.role == "assistant":
            return self._continue_reply("continue_nudge", speaker)
        follows_reply = placement.last is not None and placement.last.role == "assistant"
        if follows_reply and len(placement.tail) == 1 and not placement.rest:
            placement = replace(placement, tail=())
            return self._make("continue", "continue_nudge", placement, speaker)
        return self._make("impersonate", "continue_nudge", replace(placement, tail=()))

    def _continue_reply(self, reason: RequestReason, speaker: str = "") -> Decision:
        """Continue the last line.

        If messages follow it on any branch, they answer the text that it has. Then it stays, and
        another version of it begins with its text.
        """
        placement, last = self._ending.placement, self._ending.last
        if placement.is_leaf or last is None:
            return self._make("continue", reason, placement, speaker)
        decision = self._make("swipe", reason, self._remove_prefill(placement), speaker)
        return replace(decision, prefill=self._get_exact_text(last))

    def _get_exact_text(self, line: Line) -> str:
        """Return the text of a line with the white space after it."""
        sent = self._reading.messages[line.place].text
        return line.text + sent[len(sent.rstrip()) :]

    def _make(
        self, kind: RequestKind, reason: RequestReason, placement: ChatPlacement, speaker: str = ""
    ) -> Decision:
        return Decision(
            kind=kind,
            reason=reason,
            placement=placement,
            prefill=self._ending.prefill,
            speaker=speaker,
            instruction=self.subject,
        )

    def _is_known(self, instruction: Instruction) -> bool:
        found = self.digests.make(instruction.text)
        return found in self._state.instructions or found in self._state.pieces

    def _is_unanswered(self) -> bool:
        """True if the list ends with a line of the user that has no stored reply."""
        last = self._ending.last
        is_leaf = self._ending.is_new or not self._ending.placement.rest
        return last is not None and last.role == "user" and is_leaf

    def _find_speaker(self) -> str:
        nudges = (each for each in reversed(self._reading.instructions) if each.kind == "group")
        return next((each.name for each in nudges), "")

    def _find_subject(self) -> str:
        """Return the text by which a correction recognises requests like this one.

        It is the last instruction. In a short list that matches nothing it is the prompt, as in
        SillyTavern's raw tasks, and otherwise the beginning of the user's line.
        """
        ending, reading = self._ending, self._reading
        if ending.instruction is not None:
            return ending.instruction.text[-_MAX_IDENTIFIED:]
        first = reading.messages[0] if reading.messages else None
        if (
            self._is_new_chat
            and first
            and first.role == "system"
            and len(reading.messages) == _RAW_TASK
        ):
            return first.text[-_MAX_IDENTIFIED:]
        if ending.last is None or ending.last.role != "user":
            return ""
        text = ending.last.text[:_MAX_IDENTIFIED].strip()
        head = text.partition("\n")[0].strip()
        return head[:_MAX_HEAD] if len(head) >= _MIN_HEAD else text

    def _find_ending(self, placement: ChatPlacement) -> _Ending:
        lines, instructions = self._reading.lines, self._reading.instructions
        instruction = instructions[-1] if instructions else None
        count, prefill = len(lines), ""
        if lines and lines[-1].role == "assistant":
            last = lines[-1]
            if instruction is None or instruction.place < last.place:
                if self._is_prefill(last, placement):
                    count -= 1
                    prefill = self._get_exact_text(last)
                    placement = self._remove_prefill(placement)
                else:
                    instruction = None
        if count and placement.tail:
            split = self._split_notes(placement.tail[-1], count - 1, placement)
            if split.note is not None:
                instruction = instruction or split.note
                kept = [] if split.line is None else [split.line]
                placement = replace(placement, tail=[*placement.tail[:-1], *kept])
                is_left = bool(kept) or count - 1 in placement.pairs
                count = count if is_left else count - 1
        return _Ending(
            placement=placement,
            last=lines[count - 1] if count else None,
            is_new=bool(placement.tail),
            prefill=prefill,
            instruction=instruction,
        )

    def _is_prefill(self, last: Line, placement: ChatPlacement) -> bool:
        """True if the last message begins a reply that nothing stored equals.

        If a reply is regenerated with the same beginning, the beginning matches the stored reply as
        if it were a cut version of it.
        """
        index = len(self._reading.lines) - 1
        if placement.tail:
            return index not in placement.pairs
        return (
            placement.last is not None
            and placement.last.id in placement.edits
            and {index, index - 1} <= set(placement.pairs)
            and self.digests.make(last.text) == self._state.prefill
        )

    def _remove_prefill(self, placement: ChatPlacement) -> ChatPlacement:
        if placement.tail:
            return replace(placement, tail=placement.tail[:-1])
        pairs = dict(placement.pairs)
        index = len(self._reading.lines) - 1
        reply = pairs.pop(index)
        edits = dict(placement.edits)
        edits.pop(reply.id, None)
        return replace(
            placement,
            edits=edits,
            pairs=pairs,
            last=pairs[max(pairs)] if pairs else None,
            parent_id=reply.parent_id,
            next_position=reply.position,
            rest=[reply, *placement.rest] if reply.is_active else (),
            is_leaf=False,
        )

    def _split_notes(self, line: Line, index: int, placement: ChatPlacement) -> _SplitLine:
        """Split the last line of the tail from notes that the client has merged with it."""
        if index in placement.pairs:
            return self._split_remainder(line)
        known, removed = set(self._state.pieces), set(self._state.instructions)
        if line.role == "assistant" or not known | removed:
            return _SplitLine(line)
        # A note of the last turn has moved on if the line that had it is there without it.
        earlier = [each for each in self._reading.lines[:index] if each.role == "user"]
        present: set[bytes] = set()
        for each in earlier[-_MAX_EARLIER_LINES:]:
            present.update(map(self.digests.make, _split_parts(each)))
        removed |= known - present if known & present else set()
        return self._remove_parts(line, removed)

    def _split_remainder(self, line: Line) -> _SplitLine:
        """Split the part of a merged line that nothing stored matches.

        If the client puts everything into one message, instructions follow the last reply in it.
        """
        if line.role == "assistant" and len(self._reading.messages) == 1:
            text = _split_parts(line)[-1]
            return _SplitLine(None, Instruction(kind="other", text=text, place=line.place))
        return self._remove_parts(line, {*self._state.pieces, *self._state.instructions})

    def _remove_parts(self, line: Line, removed: Collection[bytes]) -> _SplitLine:
        parts = [(part, self.digests.make(part) in removed) for part in _split_parts(line)]
        notes = [part for part, is_note in parts if is_note]
        if not notes:
            return _SplitLine(line)
        kept = [part for part, is_note in parts if not is_note]
        note = Instruction(kind="other", text=notes[-1], place=line.place)
        if not kept:
            return _SplitLine(None, note)
        text = "\n\n".join(kept)
        return _SplitLine(replace(line, text=text, pieces=kept if len(kept) > 1 else ()), note)


def _split_parts(line: Line) -> Sequence[str]:
    if line.pieces:
        return line.pieces
    parts = [line.text[begin:end] for begin, end in iterate_paragraphs(line.text)]
    return parts[-MAX_PIECES:] or [line.text]
