"""What the application refuses to start with."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.registry import UnknownModelError, build_registry
from backend.settings import Settings


@pytest.mark.parametrize("name", ["default_model", "enrichment_model"])
def test_a_model_that_nobody_offers_can_t_be_the_one_that_is_asked(name: str) -> None:
    values: dict[str, Any] = {"_env_file": None, name: "gemini/of-another-day"}
    with pytest.raises(UnknownModelError, match="of-another-day"):
        build_registry(Settings(**values))
