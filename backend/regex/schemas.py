"""API schemas of regex scripts."""

from typing import Annotated

import msgspec

from backend.regex.scripts import MAX_SCRIPTS, RegexScript, ScriptState, TextForm, TextKind


class ScriptList(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Regex scripts in execution order, in the format of SillyTavern's files."""

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]


class ScriptListView(msgspec.Struct, kw_only=True):
    """The account's regex scripts and the revision of the list."""

    scripts: list[RegexScript]
    revision: int


class ScriptTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to test scripts on, and the kind of text that it represents.

    `form` is `stored`, `prompt` (sent to the model) or `shown`. `depth` is the distance from the
    newest message. `character` is the value of `{{char}}`.
    """

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]
    text: Annotated[str, msgspec.Meta(max_length=100_000)]
    place: TextKind = "reply"
    form: TextForm = "stored"
    depth: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    is_edit: bool = False
    character: Annotated[str, msgspec.Meta(max_length=200)] = ""


class ScriptStep(msgspec.Struct, kw_only=True):
    """The result of one script: the number of matches and the text after it."""

    name: str
    state: ScriptState
    matches: int
    text: str


class ScriptTested(msgspec.Struct, kw_only=True):
    """The final text and the result of each script."""

    text: str
    steps: list[ScriptStep]
