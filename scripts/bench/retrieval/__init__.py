"""Measure how well texts are found and compared.

    scripts/bench.py retrieval NAME [OPTION...]

`locomo`, `longmemeval`, `lists`, `events`, `paraphrase`, `languages` and `scenes` search chats,
`lore` searches lorebooks. `mentions` and `tags` test the rules of campaigns, `duplicates` those of
chronicles. `breadth` and `thresholds` choose constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.bench.commands import run_command

NAMES = (
    "breadth", "duplicates", "events", "languages", "lists", "locomo", "longmemeval", "lore",
    "mentions", "paraphrase", "scenes", "tags", "thresholds",
)  # fmt: skip
"""Modules of this package that have a `main(arguments)`."""


def main(arguments: Sequence[str]) -> None:
    run_command(__name__, NAMES, arguments)
