"""Tests of the public part of cards: forms of an appearance, and what is never part of it."""

from __future__ import annotations

import time

import pytest

from backend.characters.cards.model import Card
from backend.characters.cards.public import find_appearance, find_public_card

FORMS = {
    "Alda is SPY.\nAppearance: tall, grey eyes\nSecret: SPY": ["Appearance: tall, grey eyes"],
    "Looks: tall\nSPY": ["Looks: tall"],
    "Appearance - tall\nSecret - SPY": ["Appearance: tall"],
    "Appearance:\ntall\ngrey eyes\nPersonality: SPY\nSPY": ["tall", "grey eyes"],
    "Appearance:\ntall\nOrigin: SPY\nSPY": ["tall"],
    "Appearance:\n\ntall\n\nSPY": ["tall"],
    "Appearance\nTall and thin.\nSecret\nSPY": ["Tall and thin."],
    "Appearance:\n- Hair: black\n- Scars: one\n- Secret: SPY\nGoal: SPY": [
        "Hair: black",
        "Scars: one",
    ],
    "- Appearance:\n  - tall\n  - Eyes: grey\n- Secret: SPY\n  - SPY": ["tall", "Eyes: grey"],
    "1. Appearance: tall\n2. Secret: SPY": ["Appearance: tall"],
    "# Alda\nSPY\n## Appearance\nTall.\n\nGrey.\n\n### Secrets\nSPY": ["Tall.", "Grey."],
    "## Looks\nTall.\n\nShe is a SPY.": ["Tall."],
    "## Appearance\ntall\nPersonality: SPY\nSPY": ["tall"],
    "== Appearance ==\ntall\n== Secret ==\nSPY": ["tall"],
    "**Appearance:** tall\n**Personality:** SPY": ["Appearance: tall"],
    "**Appearance**: tall\n\n**Secret**: SPY": ["Appearance: tall"],
    "**Appearance**\ntall\n\n**Secret**\nSPY": ["tall"],
    "[Appearance: tall]\n[Secret: SPY]": ["Appearance: tall"],
    "[Appearance]\ntall\n[Secret]\nSPY": ["tall"],
    "<appearance>\ntall\n</appearance>\n<secret>SPY</secret>": ["tall"],
    "<Appearance>tall</Appearance>\n<secret>SPY</secret>": ["Appearance: tall"],
    "<char>\nAppearance: tall\nSecret: SPY\n</char>": ["Appearance: tall"],
    '[Character("Alda")\n{\nHair("black" + "long (dyed)")\nSecret("SPY")\n}]': [
        "Hair: black, long (dyed)"
    ],
    '[Character("Alda"){Age("24") Eyes("grey" +\n "big") Secret("SPY")}]': ["Eyes: grey, big"],
    "[{{char}}'s looks: tall; {{char}}'s clothes: cloak; {{char}}'s secret: SPY]": [
        "looks: tall",
        "clothes: cloak",
    ],
    "[Alda: female, Appearance: tall, thin; Secret: SPY]": ["Appearance: tall, thin"],
    'Appearance= "tall" + "grey eyes"\nSecret= "SPY"': ["Appearance: tall, grey eyes"],
    "Appearance: tall; thin; eyes: green; she hides: SPY": [
        "Appearance: tall; thin",
        "eyes: green",
    ],
    "Appearance: tall. Secret: SPY": ["Appearance: tall."],
    "Appearance: tall | Secret: SPY": ["Appearance: tall"],
    "Alda is SPY. Looks: tall. Eyes: grey. Personality: SPY": ["Looks: tall.", "Eyes: grey."],
    '{"name": "Alda",\n"appearance": "tall",\n"secret": "SPY"}': ["appearance: tall"],
    '"appearance": ["tall", "slim"],\n"secret": ["SPY"]': ["appearance: tall, slim"],
    "appearance:\n  hair: black\n  eyes: grey\nsecret: SPY": ["hair: black", "eyes: grey"],
    "Appearance & Clothing: tall\nAppearance & Personality: SPY": ["Appearance & Clothing: tall"],
    "Alda's appearance: tall\nBor's appearance: SPY": ["appearance: tall"],
    "Aussehen: groß\nGeheimnis: SPY": ["Aussehen: groß"],
    "外貌：高\n秘密：SPY": ["外貌: 高"],
    "Appearance: tall\r\nSecret: SPY\r\n": ["Appearance: tall"],
    "True appearance: SPY\nSecret looks: SPY\nHidden: SPY": [],
    "Alda looks tall. Her appearance is that of a SPY.": [],
    "": [],
}


@pytest.mark.parametrize(("description", "found"), FORMS.items(), ids=range(len(FORMS)))
def test_an_appearance_is_found_in_forms_of_cards(description: str, found: list[str]) -> None:
    assert find_appearance(Card(name="Alda Voss", description=description)) == found


def test_the_marked_text_follows_the_appearance() -> None:
    card = Card(
        name="Alda",
        description="Looks: tall\nSPY",
        personality="SPY",
        scenario=" A boat. ",
        extensions={"talekeeper": {"public": " A healer. ", "authors_note": {"text": "SPY"}}},
    )
    found = find_public_card(card)
    assert (found.text, found.scenario) == ("Looks: tall\nA healer.", "A boat.")


@pytest.mark.parametrize("part", ['Appearance("', "Appearance: x, a", "<looks>\n", "a b ", "- a: "])
def test_hostile_descriptions_are_read_in_linear_time(part: str) -> None:
    short, long = (measure(part * (size // len(part))) for size in (20_000, 200_000))
    # Ten times the text. Quadratic work would take a hundred times as long.
    assert long < 40 * max(short, 0.001)


def measure(description: str) -> float:
    """Return the seconds of the CPU that a description takes."""
    begin = time.process_time()
    find_appearance(Card(name="Alda", description=description))
    return time.process_time() - begin
