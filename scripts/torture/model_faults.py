"""Faults of the model: refusals, failures, broken and endless answers."""

from __future__ import annotations

from functools import partial

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.faults import Step, try_all
from scripts.torture.model import FAULTS, Fault
from scripts.torture.report import Row

SILENCE = 2
"""Seconds after which a silent model has failed here, so that a campaign takes minutes."""


async def run(options: Options) -> list[Row]:
    """One row for each fault."""
    async with campaign(options, model_silence_seconds=SILENCE) as made:
        return await try_all(made, options, "model", _faults(made))


def _faults(made: Campaign) -> dict[str, tuple[Step, Step]]:
    async def become(fault: Fault) -> None:
        made.model.fault = fault

    return {fault: (partial(become, fault), partial(become, "none")) for fault in FAULTS}
