"""Migrations of the main branch never change: databases that they made have to stay readable."""

from __future__ import annotations

import hashlib
from pathlib import Path

from backend.database.migrate import MIGRATIONS

LANDED = Path(__file__).parents[1] / "fixtures" / "landed_migrations.sha256"
"""One line for each migration, as `sha256sum` writes it; lines are only added."""


def read_landed() -> dict[str, str]:
    """Digests by file name."""
    lines = LANDED.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in map(str.split, lines)}


def test_no_landed_migration_has_changed_or_is_missing() -> None:
    landed = read_landed()
    present = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (MIGRATIONS / "versions").glob("[0-9]*.py")
    }
    assert landed == {name: present.get(name) for name in landed}


def test_migrations_are_only_added_after_those_that_landed() -> None:
    landed = read_landed()
    added = {path.name for path in (MIGRATIONS / "versions").glob("[0-9]*.py")} - landed.keys()
    assert all(name > max(landed) for name in added)
