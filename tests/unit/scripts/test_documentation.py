"""The pages agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend.settings import Settings
from scripts.write_docs import PARTS, app_errors, render_pages, setting_texts

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
VARIABLES = {
    str(field.validation_alias or f"TALEKEEPER_{name.upper()}")
    for name, field in Settings.model_fields.items()
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_generated_parts_are_up_to_date() -> None:
    stale = [path.name for path, old, new in render_pages() if new != old]
    assert stale == [], "run .venv/bin/python scripts/write_docs.py"


def test_every_generated_part_is_on_one_page() -> None:
    found = [
        name
        for _, text, _ in render_pages()
        for name in re.findall(r"<!-- from the code: (\w+) -->\n(?s:.*?)<!-- end -->", text)
    ]
    assert sorted(found) == sorted(PARTS)


def test_every_setting_is_explained_once() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `((?:TALEKEEPER|HF)_\w+)`", page, re.MULTILINE)) == sorted(
        VARIABLES
    )


def test_every_setting_has_a_description() -> None:
    assert setting_texts().keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_no_page_speaks_of_a_setting_that_does_not_exist(path: Path) -> None:
    named = set(re.findall(r"TALEKEEPER_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8")))
    assert named <= VARIABLES


def test_every_error_says_when_it_happens() -> None:
    assert [kind.__name__ for kind in app_errors() if not kind.__doc__] == []


def test_no_two_errors_share_a_type() -> None:
    slugs = [kind.slug for kind in app_errors() if "slug" in vars(kind)]
    assert sorted(slugs) == sorted(set(slugs))


def test_every_page_that_the_code_names_exists() -> None:
    modules = [
        path for name in ("backend", "scripts", "tests") for path in ROOT.glob(f"{name}/**/*.py")
    ]
    named = {
        name
        for path in (*modules, ROOT / "compose.yaml", ROOT / "scripts/serve")
        for name in re.findall(r"(?<![/.\w])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }

    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_link_to_a_section_leads_to_one(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    missing = [
        f"{link}#{section}"
        for link, section in links
        if section not in sections(path.parent / link if link else path)
    ]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_no_page_has_more_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_page_of_the_documentation_is_on_the_map(path: Path) -> None:
    if "decisions" in path.parts or path.parent == ROOT:
        return
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs/README.md").read_text(encoding="utf-8"))
    assert path.relative_to(ROOT / "docs").as_posix() in {"README.md", *links}


def sections(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    missing = [
        link
        for link in links
        if not re.match(r"[a-z]+:", link) and not (path.parent / link).exists()
    ]
    assert missing == []


def test_every_decision_is_in_the_list() -> None:
    decisions = ROOT / "docs/decisions"
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (decisions / "README.md").read_text("utf-8"))
    assert listed == sorted(path.name for path in decisions.glob("[0-9]*.md"))


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/decisions/[0-9]*.md")), ids=relative)
def test_a_decision_fits_one_screen(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert text.startswith(f"# {path.name[:4]}: ")
    assert len(text.splitlines()) <= 60
