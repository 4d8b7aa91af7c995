"""Sampling settings, their limits, and the check that a model supports them."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from backend.errors import ValidationError
from backend.generation.json_text import mapping, parse_json

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
    "min_p",
    "top_a",
    "typical_p",
    "repetition_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_probability",
    "xtc_threshold",
    "logit_bias",
    "grammar",
    "json_schema",
    "start_reply_with",
]

SAMPLING_FIELDS: tuple[SamplingField, ...] = get_args(SamplingField)

SafetyThreshold = Literal["off", "none", "high", "medium", "low"]
"""The strength of the provider's filter: `off` is no filter, `low` the strictest."""

HarmCategory = Literal["harassment", "hate_speech", "sexually_explicit", "dangerous_content"]

StopSequence = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
SequenceBreaker = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
TokenId = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,7}$")]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Grammar = Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]


class Sampling(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of a request. None uses the provider's default.

    `grammar` (GBNF) and `json_schema` (a JSON text) define the form of a reply, and
    `start_reply_with` its beginning. These three are ignored if the model is asked for JSON or may
    call tools.
    """

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
    min_p: Share | None = None
    top_a: Share | None = None
    typical_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=3)] | None = None
    dry_multiplier: Annotated[float, msgspec.Meta(ge=0, le=10)] | None = None
    dry_base: Annotated[float, msgspec.Meta(ge=1, le=10)] | None = None
    dry_allowed_length: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    dry_penalty_last_n: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None
    dry_sequence_breakers: (
        Annotated[tuple[SequenceBreaker, ...], msgspec.Meta(max_length=50)] | None
    ) = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    logit_bias: Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=300)] | None = None
    grammar: Grammar | None = None
    json_schema: Grammar | None = None
    start_reply_with: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)] | None = None

    def __post_init__(self) -> None:
        if self.json_schema is not None and not mapping(parse_json(self.json_schema)):
            raise ValueError("json_schema is not the JSON text of an object")

    def set_fields(self) -> list[SamplingField]:
        """Return the names of the settings that are set, in order of declaration."""
        return [name for name in SAMPLING_FIELDS if getattr(self, name) is not None]

    def without_form(self) -> Sampling:
        """Remove the settings that only replies in words have."""
        if self.grammar is self.json_schema is self.start_reply_with is None:
            return self
        return msgspec.structs.replace(self, grammar=None, json_schema=None, start_reply_with=None)


class SettingNotTakenError(ValidationError):
    """The model does not support a sampling setting. The setting is refused, never ignored."""

    slug, title = "setting-not-taken", "The model does not support this setting"


def check_taken(sampling: Sampling, *, accepts: frozenset[SamplingField], model_id: str) -> None:
    """Raise `SettingNotTakenError` if a setting is set that the model does not support."""
    refused = [name for name in sampling.set_fields() if name not in accepts]
    if refused:
        raise SettingNotTakenError(
            f"{model_id} does not support {', '.join(refused)}. "
            f"It supports {', '.join(sorted(accepts)) or 'no settings'}.",
            extra={"refused": refused, "accepts": sorted(accepts), "model": model_id},
        )
