"""The demo model at a campaign's table: a small scene through the moods of blades, with a die."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from backend.generation._demo_agent import last_line
from backend.generation._json import mapping
from backend.generation.model import Prompt, Tool, ToolCall

_CLOCK = "Somebody raises the alarm"
_RISKS = {
    "infiltration": "pick|sneak|steal|climb|hide|creep|break|lock",
    "violence": "fight|attack|stab|shoot|hit|kill|strike",
    "social": "bluff|lie|threaten|persuade|convince|bribe",
    "pursuit": "run|chase|flee|jump|follow",
    "arcane": "summon|conjure|ritual|ghost",
}
_RISKY = {
    domain: re.compile(rf"\b(?:{words})\w*", re.IGNORECASE) for domain, words in _RISKS.items()
}
_FIXED = re.compile(r"^What happened is fixed: (\w+), (.+)$", re.MULTILINE)
_LATER = "This follows from the last turn with:"
_OUTCOMES: Sequence[dict[str, Any]] = (
    {"tier": "critical", "hint": "it goes better than you dared to hope"},
    {"tier": "success", "hint": "it works, and nobody is the wiser"},
    {
        "tier": "partial",
        "hint": "it works, but somebody has heard you",
        "costs": [{"kind": "stress", "amount": 1}],
    },
    {
        "tier": "bad",
        "hint": "it goes wrong, and loudly",
        "costs": [{"kind": "stress", "amount": 2}, {"kind": "heat", "amount": 1}],
    },
)
_NEXT = ["I go on, before anybody comes.", "I listen at the door.", "I hide, and wait."]


def play(prompt: Prompt, tools: Sequence[Tool]) -> tuple[str | None, list[ToolCall]]:
    """What it tells (None: what it tells everybody) and what it calls; nothing at other tables."""
    offered = {tool.name for tool in tools}
    if "finish_turn" not in offered:
        return None, []
    line = last_line(prompt)
    system = "\n".join(each.text for each in prompt.messages if each.role == "system")
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
            return "", [_call("spend_die", situation=situation, outcomes=list(_OUTCOMES))]
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
