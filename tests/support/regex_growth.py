"""Attacks that show if a regular expression takes more than linear time.

From the parsed pattern come texts that nearly match: something that leads to a repeat, very many
times what repeats accept, then one character more. The pattern runs over each in growing lengths,
and the processor's time is compared. Static checkers were no help: those on PyPI know neither
possessive repeats nor `a*b?a*`.
"""

from __future__ import annotations

import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # isort: skip

EVERY_START = "finditer"
"""The method for patterns that are tried at every position (`sub`, `split`, `findall`)."""

_GENERIC = " \t\n\r\x0b\x85aAzZéß中_09-.,:;!?\"'`*~#@/\\<>()[]{}|=+&%$^\x00"
_MANY = 16
"""A repeat that may go on for so long is one to attack."""
_MOST_PUMPS, _MOST_PREFIXES, _MOST_SUFFIXES = 90, 9, 6

_FIRST_LENGTHS = (16, 20, 24, 32, 64, 128)
_HOPELESS_SECONDS = 0.005
"""No pattern takes so long for the first lengths unless the time grows exponentially."""
_SCREENS = ((300, 0.12e-6), (1_200, 0.4e-6), (4_800, 1.5e-6), (19_200, 0.0))
"""Lengths, and seconds a character up to which there is nothing to look into."""
_MEASURABLE_SECONDS = 0.002
_SUPERLINEAR = 8.0
"""Four times the length takes a linear pattern four times as long, and a quadratic one 16 times."""
_CERTAINLY_LINEAR = 4.6
"""If the time grows by less from one length to the next, it grows by less than 8 at the one after:
a quadratic part that would make it 8 there makes it 5.3 here."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A text by which a pattern's time grows faster than the text."""

    prefix: str
    pump: str
    suffix: str
    growth: float

    def text(self, length: int) -> str:
        """The attack with as many pumps as make about that length."""
        return self.prefix + self.pump * max(1, length // len(self.pump)) + self.suffix


def find_attack(pattern: re.Pattern[Any], *, method: str = EVERY_START) -> Attack | None:
    """The first successful attack, or None if the time grows linearly.

    Args:
        pattern: Of `re`, or of `regex`, whose patterns are attacked without being parsed.
        method: Which of the pattern's methods is called.
    """
    run = _runner(pattern, method)
    for prefix, pump, suffix in _attempts(pattern):
        attempt = Attack(prefix, pump, suffix, 0.0)
        if growth := _growth(run, attempt):
            return Attack(prefix, pump, suffix, growth)
    return None


def _runner(pattern: re.Pattern[Any], method: str) -> Callable[[str], object]:
    call = getattr(pattern, method)
    encode: Callable[[str], Any] = (
        (lambda text: text.encode("latin-1", "replace"))
        if isinstance(pattern.pattern, bytes)
        else str
    )
    if method == EVERY_START:
        return lambda text: sum(1 for _ in call(encode(text)))
    return lambda text: call(encode(text))


def _seconds(run: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    run(text)
    return time.thread_time() - start


def _growth(run: Callable[[str], object], attempt: Attack) -> float:
    """The growth of the time for four times the length if it is too large, else 0."""
    for length in _FIRST_LENGTHS:
        if _seconds(run, attempt.text(length)) > _HOPELESS_SECONDS and all(
            _seconds(run, attempt.text(length)) > _HOPELESS_SECONDS for _ in range(2)
        ):
            return float("inf")
    shorter = 0.0
    for length, each in _SCREENS:
        text = attempt.text(length)
        taken = _seconds(run, text)
        if taken > each * length:
            taken = min(taken, _seconds(run, text))
        if taken <= each * length:
            return 0.0
        if taken >= _MEASURABLE_SECONDS:
            if taken < _CERTAINLY_LINEAR * shorter:
                return 0.0
            longer = attempt.text(4 * length)
            growth = _seconds(run, longer) / taken
            if growth > _SUPERLINEAR:
                growth = min(growth, _seconds(run, longer) / taken)
            return growth if growth > _SUPERLINEAR else 0.0
        shorter = taken
    return 0.0


def _attempts(pattern: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(pattern, re.Pattern):
        tree = _Tree(pattern)  # pyright: ignore[reportUnknownArgumentType]  # of any string
        return product(tree.prefixes, tree.pumps, tree.suffixes)
    return product([""], _GENERIC, ["", "\x00", "\n", "a", " "])


class _Tree:
    """The texts and repeats of a parsed pattern."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source: Any = pattern.pattern
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `[[` of another dialect
            self.parsed = _parser.parse(source, pattern.flags & ~re.DEBUG)
        self.is_bytes = isinstance(source, bytes)
        self.alphabet = self._alphabet()
        self._accepted: dict[str, frozenset[str]] = {}
        repeats = list(self._repeats(self.parsed, [""]))
        inside = [self._accepts(node) for body, _ in repeats for node in self._characters(body)]
        everything = [self._accepts(node) for node in self._characters(self.parsed)]
        words = frozenset(sign for sign in self.alphabet if sign == "_" or sign.isalnum())
        repeated = self._kinds([*inside, words], only_in=inside)
        kinds = self._kinds([*everything, words], only_in=None)
        leads = _distinct((head for _, heads in repeats for head in heads[:2]), _MOST_PREFIXES)
        samples = [sample for body, _ in repeats for sample in self._samples(body)]
        led = [
            head + sample
            for body, heads in repeats
            for head in heads[:3]
            for sample in self._samples(body)
        ]
        led += [head + sign for head in filter(None, leads) for sign in "\n a"]
        drawn = random.Random(1)
        some = ["".join(drawn.choices([*kinds, *leads], k=k)) for k in (2, 2, 3, 3, 4) * 6]
        pairs = ["".join(pair) for pair in permutations(repeated[:5], 2)]
        pumps = filter(None, [*repeated[:20], *samples[:20], *led[:30], *pairs, *some])
        self.prefixes = _distinct(["", *leads], _MOST_PREFIXES)
        self.pumps = _distinct(pumps, _MOST_PUMPS)
        self.suffixes = _distinct(["", "\x00", "\n", *kinds], _MOST_SUFFIXES)

    def _alphabet(self) -> list[str]:
        found: dict[str, None] = {}
        for op, argument in self._nodes(self.parsed):
            if op in {_constants.LITERAL, _constants.NOT_LITERAL}:
                found[chr(argument)] = None
            elif op is _constants.RANGE:
                found |= dict.fromkeys(map(chr, argument))
        signs = [*list(found)[:40], *_GENERIC]
        return [sign for sign in dict.fromkeys(signs) if not self.is_bytes or ord(sign) < 256]

    def _nodes(self, items: Any) -> Iterator[tuple[Any, Any]]:
        """Every node, those of character sets among them."""
        for op, argument in items:
            yield op, argument
            if op is _constants.IN:
                yield from self._nodes(argument)
            for part in self._parts(op, argument):
                yield from self._nodes(part)

    @staticmethod
    def _parts(op: Any, argument: Any) -> Sequence[Any]:
        """The sequences in a node."""
        if op in _parser._REPEATCODES:
            return [argument[2]]
        if op in {_constants.ASSERT, _constants.ASSERT_NOT}:
            return [argument[1]]
        if op is _constants.GROUPREF_EXISTS:
            return [part for part in argument[1:] if part is not None]
        parts: dict[Any, Callable[[], Any]] = {
            _constants.SUBPATTERN: lambda: [argument[3]],
            _constants.BRANCH: lambda: argument[1],
            _constants.ATOMIC_GROUP: lambda: [argument],
        }
        return parts[op]() if op in parts else []

    def _characters(self, items: Any) -> Iterator[tuple[Any, Any]]:
        """The nodes that match one character each."""
        single: set[Any] = {
            _constants.LITERAL,
            _constants.NOT_LITERAL,
            _constants.IN,
            _constants.ANY,
        }
        for op, argument in items:
            if op in single:
                yield op, argument
            for part in self._parts(op, argument):
                yield from self._characters(part)

    def _accepts(self, node: tuple[Any, Any]) -> frozenset[str]:
        known = self._accepted.get(str(node))
        if known is None:
            one = _compiled(self.parsed.state, node)
            known = frozenset(
                sign
                for sign in self.alphabet
                if one.fullmatch(sign.encode("latin-1") if self.is_bytes else sign)
            )
            self._accepted[str(node)] = known
        return known

    def _kinds(
        self, sets: Iterable[frozenset[str]], *, only_in: list[frozenset[str]] | None
    ) -> list[str]:
        """One character of each kind: those of one kind are in the same sets."""
        distinct = list(dict.fromkeys(sets))
        wanted = None if only_in is None else frozenset[str]().union(*only_in)
        kinds: dict[tuple[bool, ...], str] = {}
        for sign in self.alphabet:
            if wanted is None or sign in wanted:
                kinds.setdefault(tuple(sign in each for each in distinct), sign)
        return list(kinds.values())

    def _samples(self, items: Any) -> list[str]:
        """A few texts that a sequence matches, as far as one can see without trying."""
        found = [""]
        for op, argument in items:
            tails = _distinct(self._sample(op, argument), 3)
            found = _distinct((head + tail for tail in tails for head in found), 4)
        return found

    def _sample(self, op: Any, argument: Any) -> list[str]:
        if op in {_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY}:
            accepted = self._accepts((op, argument))
            signs = [sign for sign in self.alphabet if sign in accepted]
            return [signs[0], signs[-1]] if signs else [""]
        if op in _parser._REPEATCODES:
            least, most, body = argument
            inner = self._samples(body)
            return [each * max(least, min(1, most)) for each in inner] + ([""] if not least else [])
        if op in {_constants.ASSERT, _constants.ASSERT_NOT}:
            return [""]
        return [each for part in self._parts(op, argument) for each in self._samples(part)] or [""]

    def _repeats(self, items: Any, before: list[str]) -> Iterator[tuple[Any, list[str]]]:
        """Each long repeat's body, with texts that lead to it."""
        for place, (op, argument) in enumerate(items):
            heads = [head + tail for head in before for tail in self._samples(list(items)[:place])]
            heads = _distinct(heads, 4)
            if op in _parser._REPEATCODES and argument[1] >= _MANY:
                yield argument[2], heads
            for part in self._parts(op, argument):
                yield from self._repeats(part, heads)


def _distinct(texts: Iterable[str], most: int) -> list[str]:
    return list(dict.fromkeys(texts))[:most]


def _compiled(state: Any, node: tuple[Any, Any]) -> Any:
    """A pattern of one node alone."""
    part: Any = _parser.SubPattern(state, [node])  # pyright: ignore[reportUnknownVariableType]
    return _compiler.compile(part, state.flags)  # pyright: ignore[reportUnknownVariableType]
