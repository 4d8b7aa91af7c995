"""Attributes and flags in words, as prompts show them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from backend.campaigns.ledger import MOST

_HEADS = ("name", "title", "text")
"""Members of an object that name it."""


def render_value(value: Any) -> str:
    """Return a value of JSON in words; empty for None and for empty lists and objects."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case dict():
            return _render_members(cast("Mapping[str, Any]", value))
        case list():
            values: list[Any] = cast("Any", value)
            mark = "; " if any(isinstance(each, dict | list) for each in values) else ", "
            return mark.join(text for each in values if (text := render_value(each)))
        case _:
            return str(value)


def render_name(name: str) -> str:
    """Return the name of an attribute or a flag as words: `hit_points` is hit points."""
    return " ".join(name.replace("_", " ").split()) or name


def render_attribute(attributes: Mapping[str, Any], name: str) -> str:
    """Return the value of an attribute in words, with the highest that it may have: 7/9."""
    text, most = render_value(attributes.get(name)), render_value(attributes.get(name + MOST))
    return f"{text}/{most}" if text and most else text


def render_attributes(attributes: Mapping[str, Any], *, besides: Collection[str] = ()) -> list[str]:
    """Return a line for each attribute that has a value, without some."""
    return [
        f"{render_name(name)}: {text}"
        for name in attributes
        if name not in besides and not _is_bound(attributes, name)
        if (text := render_attribute(attributes, name))
    ]


def render_flags(flags: Mapping[str, bool]) -> list[str]:
    """Return a world's flags, each with yes or no."""
    return [f"{render_name(name)}: {render_value(flag)}" for name, flag in flags.items()]


def _is_bound(attributes: Mapping[str, Any], name: str) -> bool:
    """True if an attribute says how high another one may be, which is shown with it."""
    return name.endswith(MOST) and bool(render_value(attributes.get(name.removesuffix(MOST))))


def _render_members(value: Mapping[str, Any]) -> str:
    head = next((name for name in _HEADS if isinstance(value.get(name), str)), None)
    members = {name: each for name, each in value.items() if name != head}
    listed = [
        f"{render_name(name)} {render_attribute(members, name)}"
        if isinstance(each, int | float) and not isinstance(each, bool)
        else f"{render_name(name)}: {text}"
        for name, each in members.items()
        if not _is_bound(members, name) and (text := render_value(each))
    ]
    inner = ", ".join(listed)
    return " ".join(filter(None, [value[head], f"({inner})" if inner else ""])) if head else inner
