"""Decisions about the requests of one SillyTavern chat, in every form of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend.openai_api.contracts import ChatPlacement, ClientState, Decision, Names, SentMessage
from backend.openai_api.decisions import build_state, decide
from backend.openai_api.reading import read_conversation
from tests.support.clients import (
    Injection,
    PostProcessing,
    SillyTavernClient,
    SillyTavernSettings,
    Wire,
)
from tests.unit.openai_api.placing import SEALER, Sent, place

NAMES = Names(user=["Alex"], characters=["Marlena"])
SETTINGS = SillyTavernSettings(
    lore_before="The mill stands on the Wend.",
    examples=[("Who are you?", "Who asks?")],
    injections=[Injection(text="[Style: terse and wry.]", depth=2)],
    post_history="[Two paragraphs at most, and no questions at the end of them.]",
)
GROUP = replace(SETTINGS, members=["Marlena", "Bo"])
UNKNOWN = "Rate the mood of this scene from one to ten, and answer with the number only, please."


class Player:
    """A user of SillyTavern, with the decisions about the requests so far."""

    def __init__(self, settings: SillyTavernSettings) -> None:
        self.client = SillyTavernClient(settings)
        self._stored: list[Sent] | None = None
        self._state: ClientState | None = None

    def ask(self, sent: Sequence[Wire], reply: str = "Hm.") -> Decision:
        reading = read_conversation(
            [SentMessage(role=each["role"], text=each["content"]) for each in sent], NAMES
        )
        placement = place(reading, self._stored) if self._stored else ChatPlacement()
        decision = decide(reading, placement, sealer=SEALER, state=self._state)
        if decision.kind != "quiet":
            self._state = build_state(reading, decision, sealer=SEALER, previous=self._state)
        self.client.receive(reply)
        self._stored = [(line.role, line.text) for line in self.client.chat]
        return decision


def list_tail(decision: Decision) -> list[str]:
    return [line.text for line in decision.placement.tail]


@pytest.mark.parametrize("squashes", [False, True])
@pytest.mark.parametrize("mode", ["none", "merge", "semi", "strict", "single"])
@pytest.mark.parametrize("settings", [SETTINGS, GROUP], ids=["one character", "group"])
def test_each_action_of_a_player_is_recognised(
    settings: SillyTavernSettings, mode: PostProcessing, *, squashes: bool
) -> None:
    player = Player(replace(settings, post_processing=mode, squashes=squashes))
    client = player.client
    assert player.ask(client.say("I knock.")).reason == "new_chat"
    second = player.ask(client.say("May I stay?"), "Come in.")
    assert (second.kind, second.reason) == ("turn", "new_line")
    assert list_tail(second) == ["May I stay?"]
    assert player.ask(client.swipe(), "Sit.").kind == "swipe"
    assert player.ask(client.ask_quietly()).reason == "known_quiet_form"
    assert player.ask(client.proceed(), " There.").kind == "continue"
    assert player.ask(client.impersonate()).kind == "impersonate"
    again = player.ask(client.send_nothing(speaker="Bo" if settings.members else ""), "Tea?")
    assert again.kind == "turn"
    assert again.reason == ("group_nudge" if settings.members else "post_history")
    assert again.speaker == ("Bo" if settings.members else "")
    assert list_tail(again) == []


@pytest.mark.parametrize("mode", ["none", "merge", "single"])
def test_an_unknown_task_is_quiet_where_its_form_shows_it(mode: PostProcessing) -> None:
    player = Player(replace(SETTINGS, post_processing=mode))
    player.ask(player.client.say("I knock."))
    assert player.ask(player.client.ask_quietly(UNKNOWN)).reason == "unknown_instruction"


def test_the_beginning_of_a_reply_belongs_to_the_reply() -> None:
    player = Player(replace(SETTINGS, prefix="Well, ", send_if_empty="Go on."))
    client = player.client
    first = player.ask(client.say("I knock."))
    assert (first.kind, first.prefill) == ("turn", "Well, ")
    assert player.ask(client.swipe()).prefill == "Well, "
    assert player.ask(client.proceed()).kind == "continue"
    assert list_tail(player.ask(client.send_nothing())) == ["Go on."]


def test_a_deleted_end_and_an_edited_line_begin_a_branch() -> None:
    player = Player(SETTINGS)
    client = player.client
    player.ask(client.say("I knock."))
    player.ask(client.say("May I stay?"))
    client.go_back(4)
    client.edit(3, "May I sit?")
    edited = player.ask(client.send_nothing())
    assert (edited.kind, list_tail(edited)) == ("turn", ["May I sit?"])
    client.go_back(2)
    assert player.ask(client.send_nothing()).kind == "swipe"
