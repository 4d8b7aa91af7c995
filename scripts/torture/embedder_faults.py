"""Faults of the embedder. Search goes by words alone meanwhile; no turn fails for it."""

from __future__ import annotations

from functools import partial

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.faults import Step, try_all
from scripts.torture.model import FAULTS, Fault
from scripts.torture.report import Row

MIDWAY = frozenset({"hang-up midway", "silence midway", "slow drip"})
"""An embedder's answer comes as a whole: there is no middle."""


async def run(options: Options) -> list[Row]:
    """One row for each fault."""
    async with campaign(options, embedding_timeout_seconds=1) as made:
        return await try_all(made, options, "embedder", _faults(made))


def _faults(made: Campaign) -> dict[str, tuple[Step, Step]]:
    async def become(fault: Fault) -> None:
        made.model.embedding_fault = fault

    return {
        fault: (partial(become, fault), partial(become, "none"))
        for fault in FAULTS
        if fault not in MIDWAY
    }
