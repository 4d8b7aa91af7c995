"""Shapes of the regex scripts' part of the API."""

from typing import Annotated

import msgspec

from backend.regex.scripts import MAX_SCRIPTS, RegexScript, ScriptState, TextForm, TextKind


class ScriptList(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Regex scripts, in the order in which they run, as SillyTavern's files have them."""

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]


class ScriptListView(msgspec.Struct, kw_only=True):
    """The account's regex scripts, and the revision of the list."""

    scripts: list[RegexScript]
    revision: int


class ScriptTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to try scripts on, and what it is to be taken for.

    `form` is what is stored, what the model gets (`prompt`), or what is `shown`. `depth` is how far
    it is from the newest message. `character` stands for `{{char}}`.
    """

    scripts: Annotated[list[RegexScript], msgspec.Meta(max_length=MAX_SCRIPTS)]
    text: Annotated[str, msgspec.Meta(max_length=100_000)]
    place: TextKind = "reply"
    form: TextForm = "stored"
    depth: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    is_edit: bool = False
    character: Annotated[str, msgspec.Meta(max_length=200)] = ""


class ScriptStep(msgspec.Struct, kw_only=True):
    """What became of one script: how often it matched, and the text after it."""

    name: str
    state: ScriptState
    matches: int
    text: str


class ScriptTested(msgspec.Struct, kw_only=True):
    """The text as the scripts leave it, and what each of them did."""

    text: str
    steps: list[ScriptStep]
