"""Whether prompts answer questions: by a line that says all words of an answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from backend.generation.tokens import get_tokenizer
from scripts._bench_table import Row
from scripts._campaign_continuity import PRESENT, recent
from scripts._campaign_script import Script
from scripts._campaign_truth import Question


@dataclass
class Tally:
    """How the questions came out, of one way to make prompts."""

    found: Counter[str] = field(default_factory=Counter[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    missed: list[str] = field(default_factory=list[str])
    stale: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])

    def judge(self, question: Question, said: Sequence[tuple[str, str]], number: int) -> None:
        """Note what a prompt says; `said` are its lines, each with the kind of its section."""
        what = f"round {number}, {question.kind}: {question.asks}"
        lines = [line for _, line in said]
        if question.hidden:
            if _says(lines, question.hidden):
                self.leaked.append(what)
            return
        self.asked[question.kind] += 1
        is_found = any(_says(lines, words) for words in question.answers)
        if is_found:
            self.found[question.kind] += 1
        else:
            self.missed.append(f"{what} {question.answers}")
        present = [line for kind, line in said if kind in PRESENT or not is_found]
        if old := next((words for words in question.stale if _says(present, words)), None):
            self.stale.append(f"{what} {old}")

    def row(self, database: str, what: str) -> Row:
        """The share of answers found, with what else there is to say."""
        kinds = ", ".join(f"{k} {self.found[k]}/{n}" for k, n in sorted(self.asked.items()))
        note = f"stale {len(self.stale)}, leaked {len(self.leaked)}; {kinds}"
        percent = round(100 * self.found.total() / max(1, self.asked.total()), 1)
        return Row(database, what, percent, unit="%", note=note)


def sliding_window(script: Script, budget: int) -> Tally:
    """The last messages that fit, whoever asks: what one audience may not know is left out."""
    count = get_tokenizer("o200k_base").count
    tally, told = Tally(), list[tuple[str, str]]()
    for number, each in enumerate(script.rounds, 1):
        told += [(f"{each.speaker}: {each.line}", "public"), (each.reply, "public")]
        if each.aside is not None:
            told.append(each.aside)
        for question in each.questions:
            texts = [
                text
                for text, audience in told
                if question.asker == "gm" or audience in {"public", question.asker}
            ]
            room = budget - count(question.asks) - 40
            lines = recent(texts, room, count)
            tally.judge(question, [("history", line) for line in lines], number)
    return tally


def _says(lines: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of the lines says all of the words, as whole words."""
    return any(all(each(line) for each in map(_finder, words)) for line in lines)


@cache
def _finder(word: str) -> Callable[[str], Any]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE).search
