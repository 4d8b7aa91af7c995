"""Load, check and render the files of `prompts/`. The code contains no prompts.

A file is a YAML header (`description`, `inputs`) between lines of `---`, then a Jinja body. Only
these files are compiled as templates. Texts of users are values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from jinja2 import Environment, StrictUndefined, Template, TemplateError, meta

from backend.errors import AppError

_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser if PyYAML includes it, because it needs a sixth of the time."""

HERE = Path(__file__).parent
FOLDERS = (HERE / "_prompts", HERE.parent / "prompts")
"""The folders of the prompts in an installed package and in a checkout."""


class PromptFileError(AppError):
    """A file of `prompts/` is missing, or its header and its body do not agree."""

    slug, title = "prompt-file", "Invalid prompt file"


@dataclass(frozen=True, slots=True)
class PromptFile:
    """One prompt, rendered with exactly the inputs of its header.

    The template is compiled at the first use, because compiling all sixty would delay the start.
    """

    name: str
    description: str
    inputs: frozenset[str]
    digest: str
    _template: Callable[[], Template]

    def render(self, **values: Any) -> str:
        """Render the prompt. Raises `PromptFileError` if the inputs differ from the header."""
        if values.keys() != self.inputs:
            raise PromptFileError(f"{self.name} expects the inputs {sorted(self.inputs)}.")
        return self._template().render(values).strip()

    def render_from(self, values: Mapping[str, Any]) -> str:
        """Render the prompt with the inputs of its header. Other values are ignored."""
        return self.render(**{name: values[name] for name in values.keys() & self.inputs})


class PromptLibrary:
    """The prompts of a folder by path without extension (`reply/system`).

    Raises `PromptFileError` if a file is invalid.
    """

    def __init__(self, folder: Path) -> None:
        # Prompts are plain text, not HTML. Escaping would change the texts of users.
        environment = Environment(
            undefined=StrictUndefined,
            autoescape=False,  # noqa: S701  # as above
            keep_trailing_newline=False,
        )
        self._files = {
            path.relative_to(folder).with_suffix("").as_posix(): path
            for path in sorted(folder.rglob("*.md"))
        }
        self._prompts = {name: _load(environment, name, path) for name, path in self._files.items()}

    def __getitem__(self, name: str) -> PromptFile:
        try:
            return self._prompts[name]
        except KeyError:
            raise PromptFileError(f"prompts/{name}.md does not exist.") from None

    def __contains__(self, name: str) -> bool:
        return name in self._prompts

    def __iter__(self) -> Any:
        return iter(self._prompts.values())


class UsedPrompts:
    """Renders prompts of a library, and records their digests by name."""

    def __init__(self, prompts: PromptLibrary) -> None:
        self._prompts = prompts
        self.digests: dict[str, str] = {}

    def render(self, name: str, **values: Any) -> str:
        prompt = self._prompts[name]
        self.digests[name] = prompt.digest
        return prompt.render(**values)


@cache
def load_prompts() -> PromptLibrary:
    """Load Talekeeper's own prompts, once per process."""
    return PromptLibrary(next(folder for folder in FOLDERS if folder.is_dir()))


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    description: str
    inputs: list[str]


def _load(environment: Environment, name: str, path: Path) -> PromptFile:
    text = path.read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2) if text.startswith("---\n") else ("", "", "")
    try:
        head = msgspec.convert(yaml.load(header, _YAML), _Header)  # noqa: S506  # safe ones
    except msgspec.ValidationError as error:
        raise PromptFileError(
            f"prompts/{name}.md needs a header with description and inputs."
        ) from error
    try:
        used = meta.find_undeclared_variables(environment.parse(body))
    except TemplateError as error:
        raise PromptFileError(
            f"prompts/{name}.md is not a valid Jinja template: {error}"
        ) from error
    if used != set(head.inputs):
        raise PromptFileError(
            f"prompts/{name}.md declares the inputs {sorted(head.inputs)} but uses {sorted(used)}."
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    template = cache(partial(environment.from_string, body))
    return PromptFile(name, head.description, frozenset(head.inputs), digest, template)
