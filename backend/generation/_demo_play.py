"""The demo model at a campaign's table: a small scene through the moods of blades, with a die."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from backend.generation._demo_agent import SAYINGS, any_word, last_line, system_of
from backend.generation._json import mapping
from backend.generation.model import Prompt, Tool, ToolCall

_CLOCK, _NEXT, _OUTCOMES = (SAYINGS["play"][name] for name in ("clock", "next", "outcomes"))
_RISKY = {domain: any_word(words, r"\w*") for domain, words in SAYINGS["play"]["risks"].items()}
_FIXED = re.compile(r"^What happened is fixed: (\w+), (.+)$", re.MULTILINE)
_LATER = "This follows from the last turn with:"


def play(prompt: Prompt, tools: Sequence[Tool]) -> tuple[str | None, list[ToolCall]]:
    """What it tells (None: what it tells everybody) and what it calls; nothing at other tables."""
    offered = {tool.name for tool in tools}
    if "finish_turn" not in offered:
        return None, []
    line = last_line(prompt)
    system = system_of(prompt)
    fixed = _FIXED.search(system)
    can_accept = "accept" in offered and "engage" not in offered
    if fixed or can_accept:
        return _aftermath(fixed, is_over=can_accept and _LATER in system)
    last = mapping(prompt.rounds[-1].results[-1] if prompt.rounds else None)
    if "error" not in last:
        if "tier" in last and "resolve" in offered:
            return "", [_call("resolve", tier=last["tier"])]
        if "spend_die" in offered:
            situation = f"You hold your breath. {line.strip()[:200]}"
            return "", [_call("spend_die", situation=situation, outcomes=_OUTCOMES)]
        domain = next((name for name, words in _RISKY.items() if words.search(line)), None)
        if "engage" in offered and domain and not prompt.rounds:
            risk = {"position": "risky", "effect": "standard", "clock": _CLOCK}
            return "", [_call("engage", domain=domain, stakes="Being caught.", **risk)]
    return None, [_call("finish_turn", suggested_actions=_NEXT)]


def _aftermath(fixed: re.Match[str] | None, *, is_over: bool) -> tuple[str | None, list[ToolCall]]:
    """Tell what the die has fixed; in a later turn, go on."""
    if fixed is None or is_over:
        return "", [_call("accept", variant="opportunity")]
    is_free = fixed[1] in {"critical", "success"}
    price = "Only time has passed." if is_free else "It has its price, and you have paid it."
    finish = _call(
        "finish_turn",
        connector="but" if is_free else "therefore",
        suggested_actions=_NEXT,
        deltas={"clocks": [{"clock": _CLOCK}]},
    )
    return f"You try, and {fixed[2]}. {price} (Talekeeper's demo model told this.)", [finish]


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"demo-{name}", name=name, arguments=arguments)
