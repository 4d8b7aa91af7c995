"""Every table of an account is either in an archive, or left out for a reason."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from backend.database.base import Base

DECISION = Path(__file__).parents[3] / (
    "docs/decisions/0076-an-archive-has-files-of-the-field-and-separate-states.md"
)


def find_account_tables() -> set[str]:
    """Return the tables with an owner, and those that belong to their rows."""
    importlib.import_module("backend.container")  # it imports all tables
    owned = {"users"}
    tables = Base.metadata.sorted_tables  # parents come first
    for table in tables:
        parents = {key.column.table.name for key in table.foreign_keys}
        if "user_id" in table.columns or parents & owned:
            owned.add(table.name)
    return owned


def test_the_decision_names_every_table_of_an_account() -> None:
    lines = DECISION.read_text().splitlines()
    named = {
        name
        for line in lines
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert named == find_account_tables()
