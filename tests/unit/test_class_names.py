"""Names of classes are unique, so that a search for one finds one."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

BACKEND = Path(__file__).parents[2] / "backend"


def test_no_two_classes_share_a_name() -> None:
    found = Counter(
        node.name
        for path in BACKEND.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []
