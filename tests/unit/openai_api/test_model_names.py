"""Tests of slugs, and of the recognition of a character in a client's system messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend.openai_api.character_recognition import (
    SystemText,
    choose_character,
    find_candidates,
)
from backend.openai_api.model_names import make_slugs

BOR = (
    "Bor is a retired lighthouse keeper with a wooden leg. {{char}} collects maps of drowned "
    "islands and never speaks about the winter of the great fire."
)
ADA = "Ada is a young clockmaker who repairs the automata of the harbour at night."
PEOPLE = [("Bor", BOR), ("Ada", ADA), ("Will", ""), ("Bo", ""), ("Старый Пётр", ""), ("林黛玉", "")]


@pytest.mark.parametrize(
    ("names", "slugs"),
    [
        (["Marlena"], ["marlena"]),
        (["Märta Ek", "Marta Ek", "MARTA  EK!"], ["marta-ek", "marta-ek-2", "marta-ek-3"]),
        (["Bor 2", "Bor", "Bor"], ["bor-2", "bor", "bor-3"]),
        (["林黛玉", "Пётр"], ["lindaiyu", "petr"]),
        (["Dr. O'Neil"], ["dr-oneil"]),
        (["***", "x" * 90], ["unnamed", "x" * 60]),
    ],
)
def test_slugs_are_latin_and_unique(names: list[str], slugs: list[str]) -> None:
    assert make_slugs(names) == slugs


def test_a_new_character_does_not_change_other_slugs() -> None:
    names = ["Bor", "Bor", "Ada"]
    assert make_slugs([*names, "Bor", "Bor 2"])[:3] == make_slugs(names)


def recognise(*texts: str, people: Sequence[tuple[str, str]] = PEOPLE) -> str | None:
    names = {place: [name] for place, (name, _) in enumerate(people)}
    text = SystemText(texts)
    candidates = find_candidates(text, names)
    chosen = choose_character(text, names, {place: people[place][1] for place in candidates})
    return None if chosen is None else f"{people[chosen][0]}:{chosen}"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["Write Bor's next reply in a fictional chat between Bor and Ada."], "Bor:0"),
        (["Write Ada's next reply in a fictional chat between Ada and Bor."], "Ada:1"),
        (["You are a storyteller.", BOR.replace("{{char}}", "Bor")], "Bor:0"),
        (["A chat of Ada with Bor.", ADA], "Ada:1"),
        (["Character: Bor\nUser: Zoe"], "Bor:0"),
        (["Roleplay as Старый Пётр."], "Старый Пётр:4"),
        (["请扮演林黛玉。"], "林黛玉:5"),
        (["The story of Bor."], "Bor:0"),
        (["Tell me about the sea. I will listen."], None),
        (["Bor and Ada meet."], None),
        (["Borneo is an island."], None),
        ([""], None),
        ([], None),
    ],
)
def test_the_character_is_recognised(texts: list[str], found: str | None) -> None:
    assert recognise(*texts) == found


def test_of_two_cards_with_one_name_the_description_decides() -> None:
    people = [("Bor", BOR), ("Bor", "Bor is a giant of the northern woods who fears only bees.")]
    text = "Write Bor's next reply. Bor is a retired lighthouse keeper with a wooden leg. Bor "
    text += "collects maps of drowned islands and never speaks about the winter of the great fire."
    assert recognise(text, people=people) == "Bor:0"
    assert recognise("Write Bor's next reply.", people=people) == "Bor:1"
