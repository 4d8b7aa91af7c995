from __future__ import annotations

from typing import Any

from backend.generation.adapters.gemini import build_request_body
from backend.generation.model import Prompt, PromptMessage, Role, ToolCall, ToolRound
from backend.generation.sampling import Sampling


def turns(*messages: tuple[Role, str], rounds: tuple[ToolRound, ...] = ()) -> Any:
    prompt = Prompt([PromptMessage(role, text) for role, text in messages], rounds)
    return build_request_body(prompt, Sampling(), thinks=False, show_thoughts=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def model(text: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"text": text}]}


def test_leading_system_messages_become_the_system_instruction() -> None:
    sent = turns(("system", "You are Oswin."), ("system", "Be brief."), ("user", "Hello."))

    assert sent["systemInstruction"] == {"parts": [{"text": "You are Oswin.\n\nBe brief."}]}
    assert sent["contents"] == [user("Hello.")]


def test_later_system_messages_stay_in_their_place_as_the_user_s() -> None:
    sent = turns(("user", "Hello."), ("assistant", "Hm."), ("system", "It rains."), ("user", "Oh."))

    assert sent["contents"] == [user("Hello."), model("Hm."), user("It rains.\n\nOh.")]
    assert "systemInstruction" not in sent


def test_neighbours_of_one_role_become_one_turn() -> None:
    sent = turns(
        ("user", "One."), ("user", "Two."), ("assistant", "Three."), ("assistant", "Four.")
    )

    assert sent["contents"] == [user("One.\n\nTwo."), model("Three.\n\nFour.")]


def test_a_greeting_comes_after_a_turn_of_the_user_s() -> None:
    sent = turns(("system", "You are Oswin."), ("assistant", "Who is there?"), ("user", "Me."))

    assert [turn["role"] for turn in sent["contents"]] == ["user", "model", "user"]
    assert sent["contents"][0]["parts"][0]["text"]
    assert sent["contents"][1:] == [model("Who is there?"), user("Me.")]


def test_a_prompt_of_system_messages_alone_has_a_turn_to_answer() -> None:
    assert [turn["role"] for turn in turns(("system", "Summarise."))["contents"]] == ["user"]


def test_messages_without_text_stay_out() -> None:
    sent = turns(("system", ""), ("user", "One."), ("assistant", " \n"), ("user", "Two."))

    assert sent["contents"] == [user("One.\n\nTwo.")]
    assert "systemInstruction" not in sent


def test_a_round_without_calls_or_text_leaves_no_empty_turn() -> None:
    sent = turns(("user", "Go."), rounds=(ToolRound((), ()), ToolRound((), (), text="Done.")))

    assert sent["contents"] == [user("Go."), model("Done.")]


def test_a_call_of_another_vendor_s_can_be_told_of() -> None:
    call = ToolCall(id="c9", name="search", arguments={"query": "knife"})

    sent = turns(("user", "Go."), rounds=(ToolRound([call], [{"hits": 0}]),))

    assert sent["contents"][1:] == [
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "search", "args": {"query": "knife"}}}],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "search", "response": {"hits": 0}}}],
        },
    ]
