"""Oddities of group replies: speaker labels that models copy from the prompt.

The speaker is Alda, beside Mags. The user is called Tester.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.oddities.oddity import OPENAI, Oddity, Result

GOOD_DAY = "Good day."


def labelled(name: str, parts: Sequence[str], thinking: str = "") -> Oddity:
    result = Result(text=GOOD_DAY, thinking=thinking)
    return Oddity(name, "every model in a group", parts, result, OPENAI)


LABELS = [
    labelled("own-label", ["Alda", ": Good day."]),
    labelled("own-label-in-letters", list("Alda: Good day.")),
    labelled("own-label-in-capitals", ["ALDA: ", GOOD_DAY]),
    labelled("own-label-on-its-own-line", ["**Alda:**\n", GOOD_DAY]),
    labelled("own-label-after-thoughts", ["<think>Hm.</think>", "Alda: ", GOOD_DAY], "Hm."),
    labelled("own-label-after-a-lone-tag", ["Hm.", "</think>", "Alda: ", GOOD_DAY], "Hm."),
    labelled("label-of-the-user", ["Good day.\n", "Tester: I leave."]),
    labelled("label-of-the-user-in-letters", list("Good day.\n\nTester: I leave.")),
]
