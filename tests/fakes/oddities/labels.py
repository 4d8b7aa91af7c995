"""Oddities of replies in a group: labels of speakers, as models copy them from the prompt.

The speaker is Alda, beside Mags. The user is called Tester.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.oddities.oddity import OPENAI, Oddity, Result

GOOD_DAY = "Good day."


def labelled(name: str, parts: Sequence[str], text: str = GOOD_DAY, thinking: str = "") -> Oddity:
    result = Result(text=text, thinking=thinking)
    return Oddity(name, "every model in a group", parts, result, OPENAI)


LABELS = [
    labelled("own-label", ["Alda", ": Good day."]),
    labelled("own-label-in-letters", list("Alda: Good day.")),
    labelled("own-label-in-bold", ["**Alda:** ", GOOD_DAY]),
    labelled("own-label-bold-before-the-colon", ["**Alda**: ", GOOD_DAY]),
    labelled("own-label-in-brackets", ["[Alda]: ", GOOD_DAY]),
    labelled("own-label-in-capitals", ["ALDA: ", GOOD_DAY]),
    labelled("own-label-on-its-own-line", ["Alda:\n", GOOD_DAY]),
    labelled("own-label-after-blanks", ["\n\n", "Alda: ", GOOD_DAY]),
    labelled(
        "own-label-after-thoughts", ["<think>Hm.</think>", "Alda: ", GOOD_DAY], thinking="Hm."
    ),
    labelled("own-label-after-a-lone-tag", ["Hm.", "</think>", "Alda: ", GOOD_DAY], thinking="Hm."),
    labelled("own-name-in-a-sentence", ["Alda ", "is here."], "Alda is here."),
    labelled("label-of-the-user", ["Good day.\n", "Tester: I leave."]),
    labelled("label-of-the-user-in-letters", list("Good day.\n\nTester: I leave.")),
    labelled("label-of-another", ["Good day.\n", "**Mags:** Hello!"]),
    labelled("label-in-a-line", ["Good day. Tester: who?"], "Good day. Tester: who?"),
    labelled("label-in-a-fence", ["```\nTester: I leave.\n```"], "```\nTester: I leave.\n```"),
]
