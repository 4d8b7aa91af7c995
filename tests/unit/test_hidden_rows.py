"""Queries that filter by owner leave out rows that are being deleted."""

from __future__ import annotations

import re
from pathlib import Path

from backend.campaigns.models import Campaign
from backend.chronicles.models import Chronicle
from backend.database.base import Deletable
from backend.lorebooks.models import Lorebook

BACKEND = Path(__file__).parents[2] / "backend"

READS_HIDDEN_ROWS = {"operations/deletions.py", "usage/spending.py"}


def test_owners_are_matched_in_one_way() -> None:
    models = Deletable.__subclasses__()
    assert {Campaign, Chronicle, Lorebook} <= set(models)
    names = "|".join(each.__name__ for each in models)
    compared = re.compile(rf"\b({names})\.user_id\s*(==|\.in_)")
    found = {
        path.relative_to(BACKEND).as_posix()
        for path in BACKEND.rglob("*.py")
        if compared.search(path.read_text(encoding="utf-8"))
    }
    assert found == READS_HIDDEN_ROWS
