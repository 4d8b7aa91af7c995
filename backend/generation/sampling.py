"""Sampling settings: what a user may set, within which bounds, and which model takes which."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from backend.errors import ValidationError

SamplingField = Literal[
    "temperature",
    "top_p",
    "top_k",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "max_output_tokens",
    "safety",
    "thinking_budget",
    "reasoning_effort",
]

SAMPLING_FIELDS: tuple[SamplingField, ...] = get_args(SamplingField)

SafetyThreshold = Literal["off", "none", "high", "medium", "low"]
"""How much the provider's filter lets through: `off` is no filter, `low` the strictest."""

HarmCategory = Literal["harassment", "hate_speech", "sexually_explicit", "dangerous_content"]

StopSequence = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Sampling(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What is asked of the model beside the prompt. `None` leaves it to the provider."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    stop: Annotated[tuple[StopSequence, ...], msgspec.Meta(max_length=5)] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    safety: dict[HarmCategory, SafetyThreshold] | None = None
    thinking_budget: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None

    def set_fields(self) -> list[SamplingField]:
        """Names of the settings that are set, in the order of declaration."""
        return [name for name in SAMPLING_FIELDS if getattr(self, name) is not None]


class SettingNotTakenError(ValidationError):
    """The model does not take a sampling setting: refused when it is set, never dropped."""

    slug, title = "setting-not-taken", "The model does not take this setting"


def check_taken(sampling: Sampling, *, accepts: frozenset[SamplingField], model_id: str) -> None:
    """Raise `SettingNotTakenError` when a setting is set that the model does not take."""
    refused = [name for name in sampling.set_fields() if name not in accepts]
    if refused:
        raise SettingNotTakenError(
            f"{model_id} does not take {', '.join(refused)}; "
            f"it takes {', '.join(sorted(accepts)) or 'no settings'}.",
            extra={"refused": refused, "accepts": sorted(accepts), "model": model_id},
        )
