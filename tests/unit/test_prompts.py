"""Prompt files: all are valid, and rendering takes exactly their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.prompts import PromptFileError, PromptLibrary, load_prompts


def write(folder: Path, name: str, text: str) -> PromptLibrary:
    (folder / name).write_text(text)
    return PromptLibrary(folder)


def test_every_prompt_that_comes_along_is_in_order() -> None:
    names = {prompt.name for prompt in load_prompts()}
    assert {"reply/system", "sections/character", "assist/continue"} <= names
    assert all(prompt.description for prompt in load_prompts())


def test_values_are_put_in_literally_and_never_compiled(tmp_path: Path) -> None:
    library = write(
        tmp_path, "a.md", "---\ndescription: d\ninputs: [name]\n---\nHello {{ name }}!\n"
    )
    assert library["a"].render(name="{{ 7 * 7 }} <b>") == "Hello {{ 7 * 7 }} <b>!"


@pytest.mark.parametrize(
    "text",
    [
        "Hello {{ name }}",
        "---\ndescription: d\n---\nHello",
        "---\ndescription: d\ninputs: []\n---\nHello {{ name }}",
        "---\ndescription: d\ninputs: [name, other]\n---\nHello {{ name }}",
        "---\ndescription: d\ninputs: [name]\n---\nHello {{ name",
    ],
)
def test_a_header_that_does_not_fit_its_body_is_refused_at_once(tmp_path: Path, text: str) -> None:
    with pytest.raises(PromptFileError):
        write(tmp_path, "a.md", text)


def test_rendering_takes_exactly_the_inputs_of_the_header() -> None:
    with pytest.raises(PromptFileError):
        load_prompts()["reply/system"].render(char="Mara")


def test_an_unknown_prompt_says_which_file_is_missing() -> None:
    with pytest.raises(PromptFileError, match=r"prompts/nowhere\.md"):
        load_prompts()["nowhere"]
