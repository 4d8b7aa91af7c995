"""Write the generated parts of docs/.

    .venv/bin/python scripts/write_docs.py [--check]

A generated part is between the comments `<!-- from the code: NAME -->` and `<!-- end -->`. `PARTS`
maps its name to a function. `--check` writes nothing, and fails if a page would change.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le
from litestar import Controller
from litestar.handlers import HTTPRouteHandler
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import backend
from backend.accounts.auth.middleware import NEEDS, PUBLIC
from backend.app import (
    API,
    API_CONTROLLERS,
    OPENAI_API,
    OPENAI_CONTROLLERS,
    PLAIN_CONTROLLERS,
)
from backend.errors import AppError
from backend.settings import Settings
from scripts import plan

DOCS = Path(__file__).parents[1] / "docs"

CAMPAIGN_TAGS = ("Campaigns", "Chronicles")
"""Tags of routes with a page of their own, because a page has at most 400 lines."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/.")
    parser.add_argument(
        "--check", action="store_true", help="only list the pages that would change"
    )
    check = parser.parse_args().check
    stale = {path: new for path, old, new in render_pages() if new != old}
    for path, new in stale.items():
        print(f"{path.name} {'is out of date' if check else 'written'}")
        if not check:
            path.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


def render_pages() -> Iterator[tuple[Path, str, str]]:
    """Yield the path, the current text and the generated text of each page of docs/."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        yield path, text, render(text)


def render(page: str) -> str:
    """Return the page with its generated parts replaced. Raise `KeyError` for an unknown part."""
    return re.sub(
        r"(<!-- from the code: (\w+) -->\n).*?(<!-- end -->)",
        lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}",
        page,
        flags=re.DOTALL,
    )


def settings_tables() -> str:
    """Return one table for each group of settings, under the heading of the group."""
    parts: list[str] = []
    texts = setting_texts()
    for heading, names in _setting_groups():
        rows = [
            (f"`{_variable(name, field)}`", _default(field), _meaning(texts[name], field))
            for name in names
            for field in [Settings.model_fields[name]]
        ]
        parts.append(f"### {heading}\n\n{_table(('Variable', 'Default', 'Meaning'), rows)}")
    return "\n\n".join(parts)


def errors_table() -> str:
    """Return a table with one row for each `type` of a problem."""
    kinds: dict[str, type[AppError]] = {}
    for kind in app_errors():
        kinds.setdefault(kind.slug, kind)
    rows = [
        (f"`{kind.slug}`", str(kind.status), kind.title, _first_sentence(kind))
        for kind in sorted(kinds.values(), key=lambda kind: (kind.status, kind.slug))
    ]
    return _table(("Slug", "Status", "Title", "When"), rows)


def app_errors() -> Iterator[type[AppError]]:
    """Yield every error class of the backend, base classes first."""
    for module in pkgutil.walk_packages(backend.__path__, "backend."):
        if not module.name.startswith("backend.database.migrations."):  # Alembic runs those
            importlib.import_module(module.name)
    queue = [AppError]
    for kind in queue:
        subclasses = [
            each for each in kind.__subclasses__() if each.__module__.startswith("backend.")
        ]
        queue.extend(subclasses)
        yield from subclasses


def routes_tables(*, of_campaigns: bool) -> str:
    """Return one table of routes for each tag: those of `CAMPAIGN_TAGS`, or all others."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    groups = ((API, API_CONTROLLERS), (OPENAI_API, OPENAI_CONTROLLERS), ("", PLAIN_CONTROLLERS))
    for prefix, controllers in groups:
        for controller in controllers:
            for handler in vars(controller).values():
                if isinstance(handler, HTTPRouteHandler):
                    rows = found.setdefault((vars(controller).get("tags") or ["Other"])[0], [])
                    rows += _route_rows(prefix, controller, handler)
    return "\n\n".join(
        f"### {tag}\n\n{_table(('Route', 'Needs', 'Purpose'), rows)}"
        for tag, rows in found.items()
        if (tag in CAMPAIGN_TAGS) is of_campaigns
    )


def _route_rows(
    prefix: str, controller: type[Controller], handler: HTTPRouteHandler
) -> Iterator[tuple[str, str, str]]:
    options = {**vars(controller).get("opt", {}), **handler.opt}
    # HEAD is not listed, because it is GET without the body.
    for method in sorted(handler.http_methods - {"HEAD"}):
        needs = options.get(NEEDS, "read" if method == "GET" else "chat")
        for path in sorted(handler.paths or {""}):
            route = (prefix + vars(controller).get("path", "") + path).replace("//", "/") or "/"
            route = re.sub(r"\{(\w+):\w+\}", r"{\1}", route).rstrip("/") or "/"
            meaning = inspect.cleandoc(handler.fn.__doc__ or "").partition("\n\n")[0]
            yield (
                f"`{method} {route}`",
                "" if options.get(PUBLIC) else f"`{needs}`",
                meaning.replace("\n", " "),
            )


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_tables,
    "errors": errors_table,
    "routes": partial(routes_tables, of_campaigns=False),
    "plan": partial(plan.make_table, plan.USERS),
    "campaign_routes": partial(routes_tables, of_campaigns=True),
}


def _setting_groups() -> list[tuple[str, list[str]]]:
    """Return the fields of `Settings`, grouped by the comments above them."""
    groups: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(Settings).splitlines():
        if heading := re.fullmatch(r"    # (.+)", line):
            groups.append((heading[1], []))
        elif (name := re.match(r"    (\w+): ", line)) and name[1] in Settings.model_fields:
            groups[-1][1].append(name[1])
    return groups


def setting_texts() -> dict[str, str]:
    """Return the docstring of each field of `Settings`.

    Pydantic's `use_attribute_docstrings` does the same, but takes 50 ms of every start.
    """
    [definition] = ast.parse(inspect.getsource(Settings)).body
    texts: dict[str, str] = {}
    for statements in pairwise(cast("ast.ClassDef", definition).body):
        match statements:
            case (ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text)))):
                texts[name] = " ".join(text.split())
            case _:
                pass
    return texts


def _variable(name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or f"TALEKEEPER_{name.upper()}")


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if isinstance(value, tuple):
        value = ",".join(cast("tuple[str, ...]", value))
    return "" if value in (None, "", {}, PydanticUndefined) else f"`{value}`"


def _meaning(text: str, field: FieldInfo) -> str:
    return " ".join(filter(None, [text, _choices(field), _range(field)]))


def _choices(field: FieldInfo) -> str:
    choices = filter(None, get_args(field.annotation))
    if get_origin(field.annotation) is not Literal:
        return ""
    return f"One of {', '.join(f'`{choice}`' for choice in choices)}."


def _range(field: FieldInfo) -> str:
    texts: list[str] = []
    for limit in field.metadata:
        if isinstance(limit, Ge):
            texts.append(f"at least {limit.ge}")
        elif isinstance(limit, Gt):
            texts.append(f"above {limit.gt}")
        elif isinstance(limit, Le):
            texts.append(f"at most {limit.le}")
    text = ", ".join(texts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _first_sentence(kind: type[AppError]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
