"""Faults of the models: refusals, failures, broken and endless answers."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Literal

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.faults import Step, try_all
from scripts.torture.model import FAULTS, Fault
from scripts.torture.report import Row

SILENCE_SECONDS = 2
"""Time after which a silent model has failed. It is short, so that a campaign takes minutes."""

STREAM_FAULTS = frozenset({"hang-up midway", "silence midway", "slow drip"})
"""Faults that an embedder cannot have, because its answers are not streams."""


async def run_model(options: Options) -> list[Row]:
    """Return one row for each fault of the model for replies."""
    async with campaign(options, model_silence_seconds=SILENCE_SECONDS) as made:
        return await try_all(made, options, "model", _make_steps(made, "fault", FAULTS))


async def run_embedder(options: Options) -> list[Row]:
    """Return one row for each fault of the embedder. Turns must work without it."""
    faults: list[Fault] = [fault for fault in FAULTS if fault not in STREAM_FAULTS]
    async with campaign(options, embedding_timeout_seconds=1) as made:
        steps = _make_steps(made, "embedding_fault", faults)
        return await try_all(made, options, "embedder", steps)


def _make_steps(
    made: Campaign, name: Literal["fault", "embedding_fault"], faults: Collection[Fault]
) -> dict[str, tuple[Step, Step]]:
    """Return the steps that begin and end each fault."""

    async def set_fault(fault: Fault) -> None:
        setattr(made.model, name, fault)

    return {fault: (partial(set_fault, fault), partial(set_fault, "none")) for fault in faults}
