"""The format of regex scripts: SillyTavern's.

A script says where it applies: to which texts (placement), in which of their forms (as they are
stored, as the model gets them, as they are shown), how far from the newest message.

Source: SillyTavern 1.18, the regex extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

TextKind = Literal["user", "reply", "lore", "reasoning"]
TextForm = Literal["stored", "prompt", "shown"]

PLACEMENTS: Mapping[TextKind, int] = {"user": 1, "reply": 2, "lore": 5, "reasoning": 6}
"""SillyTavern's numbers. Its 0 (shown) and 3 (slash commands) have no meaning here."""

MAX_SCRIPTS = 100
"""Of an account, and of a card."""


class RegexScript(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A script, with the names that SillyTavern's files have.

    `findRegex` is `/pattern/flags`, or a pattern alone. In `replaceString`, `$1` and `$<name>` are
    groups, `{{match}}` is all that was found; `trimStrings` are cut out of what these put in.
    `placement` lists where it applies: 1 the user's lines, 2 replies, 5 lore, 6 reasoning.
    `markdownOnly` changes what is shown, `promptOnly` what the model gets; with neither, what is
    stored is changed. `minDepth` and `maxDepth` count from the newest message, which is 0.
    `substituteRegex` expands macros in the pattern: 1 as they are, 2 as literal text.
    """

    id: Annotated[str, msgspec.Meta(max_length=100)] = ""
    script_name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    find_regex: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    replace_string: Annotated[str, msgspec.Meta(max_length=20_000)] = ""
    trim_strings: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=500)]], msgspec.Meta(max_length=20)
    ] = []
    placement: Annotated[list[int], msgspec.Meta(max_length=10)] = []
    disabled: bool = False
    markdown_only: bool = False
    prompt_only: bool = False
    run_on_edit: bool = False
    substitute_regex: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    min_depth: int | None = None
    max_depth: int | None = None

    def is_for(self, place: TextKind, form: TextForm, *, is_edit: bool) -> bool:
        """Whether it is for texts of that kind and form."""
        if self.disabled or PLACEMENTS[place] not in self.placement:
            return False
        forms = {"shown": self.markdown_only, "prompt": self.prompt_only}
        return forms.get(form, not any(forms.values())) and (self.run_on_edit or not is_edit)

    def reaches(self, depth: int | None) -> bool:
        """Whether it is for texts so far from the newest message; all are, where nobody knows."""
        if depth is None:
            return True
        least, most = self.min_depth, self.max_depth
        return (least is None or depth >= least) and (most is None or most < 0 or depth <= most)


def read_scripts(extensions: Mapping[str, Any]) -> list[RegexScript]:
    """The scripts of a card, up to the limit; what is none of them is passed over."""
    listed = extensions.get("regex_scripts")
    if not isinstance(listed, list):
        return []
    scripts: list[RegexScript] = []
    for value in cast("list[object]", listed)[:MAX_SCRIPTS]:
        try:
            # Tools write null for what is not set; older ones, a boolean for substituteRegex.
            given = {k: v for k, v in cast("dict[str, Any]", value).items() if v is not None}
            if "substituteRegex" in given:
                given["substituteRegex"] = int(given["substituteRegex"])
            scripts.append(msgspec.convert(given, RegexScript, strict=False))
        except (msgspec.ValidationError, AttributeError, ValueError, TypeError):
            continue
    return scripts


def parse_find(text: str) -> tuple[str, str | None]:
    """Pattern and flags of what a script looks for; no flags where they are none.

    Between the first slash and the last one, with the flags behind; or the pattern alone.
    """
    end = text.rfind("/")
    flags = text[end + 1 :]
    is_between = text.startswith("/") and end > 1
    if not is_between or (flags and not (flags.isascii() and flags.isalpha())):
        return text, ""
    is_known = set(flags) <= set("gimsuy") and len(set(flags)) == len(flags)
    return text[1:end], "".join(sorted(flags)) if is_known else None
