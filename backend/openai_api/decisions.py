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

from backend.openai_api.contracts import (
    ChatState,
    Decision,
    Instruction,
    Line,
    Placement,
    Reading,
    RequestReason,
    StoreChoice,
)
from backend.openai_api.models import RequestKind, RuledKind
from backend.openai_api.quiet_forms import find_list_form, is_connection_test
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
    reading: Reading,
    placement: Placement,
    *,
    sealer: Sealer,
    state: ChatState | None = None,
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
    case = _Case(reading, placement, _Digests(sealer), state or ChatState())
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
    reading: Reading,
    decision: Decision,
    *,
    sealer: Sealer,
    previous: ChatState | None = None,
    hidden: Sequence[UUID] = (),
) -> ChatState:
    """Return the state to store after a request that was not quiet."""
    digests = _Digests(sealer)
    known = previous.instructions if previous else ()
    instructions = [
        found
        for each in reading.instructions
        if (found := digests.make(each.text)) in known or each.kind == "other"
    ]
    last = next((line for line in reversed(reading.lines) if line.role == "user"), None)
    parts = [digests.make(part) for part in _split_pieces(last)] if last else []
    if len(parts) == 1 and previous and parts[0] in previous.pieces:
        pieces = previous.pieces
    else:
        pieces = tuple(parts) if len(parts) > 1 else ()
    return ChatState(
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

    placement: Placement
    last: Line | None
    is_new: bool
    prefill: str = ""
    instruction: Instruction | None = None


class _Case:
    """One request, with its place and the state of its chat."""

    def __init__(
        self, reading: Reading, placement: Placement, digests: _Digests, state: ChatState
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
            return self._make("continue", "ends_with_reply", ending.placement)
        return self._answer(self._find_turn_reason(speaker), speaker)

    def _find_turn_reason(self, speaker: str) -> RequestReason:
        last = self._ending.last
        if self._ending.prefill:
            return "prefill"
        if self._is_new_chat:
            return "new_chat"
        if last is not None and last.role == "user":
            return "new_line" if self._ending.is_new else "answer_missing"
        return "group_nudge" if speaker else "post_history"

    def _answer(self, reason: RequestReason, speaker: str) -> Decision:
        placement = self._ending.placement
        is_missing = not placement.tail and bool(placement.rest)
        if is_missing and reason != "prefill":
            reason = "reply_missing"
        return self._make("swipe" if is_missing else "turn", reason, placement, speaker)

    def _continue_by_nudge(self) -> Decision:
        """Continue the last reply.

        `send_if_empty` puts a line between the reply and the nudge. If the last line is the user's,
        the text belongs to that line, and the next request brings it as an edit.
        """
        placement, last = self._ending.placement, self._ending.last
        speaker = self._find_speaker()
        if last is not None and last.role == "assistant":
            return self._make("continue", "continue_nudge", placement, speaker)
        follows_reply = placement.last is not None and placement.last.role == "assistant"
        if follows_reply and len(placement.tail) == 1 and not placement.rest:
            placement = replace(placement, tail=())
            return self._make("continue", "continue_nudge", placement, speaker)
        return self._make("impersonate", "continue_nudge", replace(placement, tail=()))

    def _make(
        self, kind: RequestKind, reason: RequestReason, placement: Placement, speaker: str = ""
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

    def _find_ending(self, placement: Placement) -> _Ending:
        lines = list(self._reading.lines)
        instruction = self._reading.instructions[-1] if self._reading.instructions else None
        prefill = ""
        if lines and lines[-1].role == "assistant":
            last = lines[-1]
            is_last = instruction is None or instruction.place < last.place
            if is_last and self._is_prefill(last, placement):
                prefill = lines.pop().text
                placement = self._remove_prefill(placement, last)
            elif is_last:
                instruction = None
        if placement.tail and lines and lines[-1].role == "user":
            kept, note = self._split_note(lines[-1], lines[:-1])
            if note is not None:
                instruction = note if instruction is None else instruction
                lines[-1:] = [] if kept is None else [kept]
                placement = replace(
                    placement, tail=[*placement.tail[:-1], *([] if kept is None else [kept])]
                )
        last_line = lines[-1] if lines else None
        return _Ending(placement, last_line, bool(placement.tail), prefill, instruction)

    def _is_prefill(self, last: Line, placement: Placement) -> bool:
        """True if the last message begins a reply that nothing stored equals.

        If a reply is regenerated with the same beginning, the beginning matches the stored reply as
        if it were a cut version of it.
        """
        if placement.tail:
            return True
        stored = placement.last
        return (
            stored is not None
            and stored.id in placement.edits
            and {len(self._reading.lines) - 1, len(self._reading.lines) - 2} <= set(placement.pairs)
            and self.digests.make(last.text) == self._state.prefill
        )

    def _remove_prefill(self, placement: Placement, last: Line) -> Placement:
        if placement.tail:
            return replace(placement, tail=[line for line in placement.tail if line is not last])
        pairs = dict(placement.pairs)
        index = len(self._reading.lines) - 1
        reply = pairs.pop(index)
        edits = dict(placement.edits)
        edits.pop(reply.id)
        rest = [reply, *placement.rest]
        return replace(placement, edits=edits, pairs=pairs, last=pairs[index - 1], rest=rest)

    def _split_note(
        self, line: Line, earlier: Sequence[Line]
    ) -> tuple[Line | None, Instruction | None]:
        """Split a new line from notes that the client has merged with it.

        Such a note was part of the previous request's last line, and has moved on: the earlier line
        is still there, without it.
        """
        known = self._state.pieces
        if not known:
            return line, None
        present: set[bytes] = set()
        users = [each for each in earlier if each.role == "user"]
        for each in users[-_MAX_EARLIER_LINES:]:
            present.update(self._digest_parts(each))
        if not present & set(known):
            return line, None
        return _remove_parts(line, self._digest_parts(line), set(known) - present)

    def _digest_parts(self, line: Line) -> list[bytes]:
        return [self.digests.make(part) for part in _split_pieces(line)]


def _split_pieces(line: Line) -> Sequence[str]:
    return line.pieces or [line.text]


def _remove_parts(
    line: Line, digests: Sequence[bytes], removed: Collection[bytes]
) -> tuple[Line | None, Instruction | None]:
    parts = list(zip(_split_pieces(line), digests, strict=True))
    notes = [part for part, found in parts if found in removed]
    if not notes:
        return line, None
    kept = [part for part, found in parts if found not in removed]
    note = Instruction(kind="other", text=notes[-1], place=line.place)
    if not kept:
        return None, note
    return replace(line, text="\n\n".join(kept), pieces=kept if len(kept) > 1 else ()), note
