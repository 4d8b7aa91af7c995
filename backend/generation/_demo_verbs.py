"""Verbs that the demo model takes for events, in English."""

from __future__ import annotations

from dataclasses import dataclass

_VERBS = {
    ("discovery", 3): """find:found discover uncover learn:learned,learnt realise realize reveal
        decipher confess admit:admitted""",
    ("death", 5): "kill slay:slew,slain murder execute die",
    ("promise", 4): "promise swear:swore,sworn vow pledge",
    ("possession", 3): """give:gave,given take:took,taken steal:stole,stolen buy:bought sell:sold
        lose:lost hide:hid,hidden receive inherit""",
    ("relationship", 3): "meet:met marry befriend forgive:forgave,forgiven",
    ("conflict", 4): "betray attack fight:fought",
    ("travel", 2): "arrive reach leave:left depart return flee:fled",
}
"""Kind and significance of an event, and its verbs, with forms that are not regular."""

_VOWELS = frozenset("aeiou")


@dataclass(frozen=True, slots=True)
class Verb:
    """What a verb makes of a sentence."""

    kind: str
    significance: int


def present(base: str) -> str:
    """The form that a name goes with: `promise` is `promises`, `marry` is `marries`."""
    if base.endswith("y") and base[-2:-1] not in _VOWELS:
        return f"{base[:-1]}ies"
    return f"{base}es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{base}s"


def _past(base: str) -> str:
    if base.endswith("e"):
        return f"{base}d"
    return f"{base[:-1]}ied" if base.endswith("y") and base[-2] not in _VOWELS else f"{base}ed"


def _forms() -> tuple[dict[str, Verb], frozenset[str]]:
    forms: dict[str, Verb] = {}
    bases: set[str] = set()
    for (kind, significance), words in _VERBS.items():
        for word in words.split():
            base, _, irregular = word.partition(":")
            bases.add(base)
            past = irregular.split(",") if irregular else [_past(base)]
            forms |= dict.fromkeys([base, present(base), *past], Verb(kind, significance))
    return forms, frozenset(bases)


FORMS, BASES = _forms()
"""Every form with what it stands for; and the forms that go with `I`."""
