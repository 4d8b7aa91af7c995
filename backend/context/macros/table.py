"""All macros by name. docs/reference/macros.md documents them for users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from backend.context.macros.expansion import (
    Invocation,
    Macro,
    Run,
    Scope,
    add_values,
    compare_values,
    format_value,
    increment,
    is_true,
    subtract_values,
)
from backend.context.macros.model import MAX_DICE, MAX_SIDES, MacroContext
from backend.context.macros.syntax import split

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NOON: Final = 12

_TOKENS: Final[dict[str, Callable[[datetime], str]]] = {
    "YYYY": lambda moment: f"{moment.year:04}",
    "YY": lambda moment: f"{moment.year % 100:02}",
    "MMMM": lambda moment: _MONTHS[moment.month - 1],
    "MMM": lambda moment: _MONTHS[moment.month - 1][:3],
    "MM": lambda moment: f"{moment.month:02}",
    "M": lambda moment: str(moment.month),
    "DD": lambda moment: f"{moment.day:02}",
    "D": lambda moment: str(moment.day),
    "dddd": lambda moment: _DAYS[moment.weekday()],
    "ddd": lambda moment: _DAYS[moment.weekday()][:3],
    "HH": lambda moment: f"{moment.hour:02}",
    "H": lambda moment: str(moment.hour),
    "hh": lambda moment: f"{moment.hour % _NOON or _NOON:02}",
    "h": lambda moment: str(moment.hour % _NOON or _NOON),
    "mm": lambda moment: f"{moment.minute:02}",
    "m": lambda moment: str(moment.minute),
    "ss": lambda moment: f"{moment.second:02}",
    "s": lambda moment: str(moment.second),
    "A": lambda moment: "AM" if moment.hour < _NOON else "PM",
    "a": lambda moment: "am" if moment.hour < _NOON else "pm",
}

# Longest token first, as in the dictionary. Text in square brackets is literal.
_FORMAT: Final = re.compile(r"\[([^\[\]]*)\]|" + "|".join(_TOKENS))

_UTC_OFFSET: Final = re.compile(
    r"(?:UTC|GMT)?\s*(?:([+-])\s*(\d{1,2})(?::?([0-5]\d))?)?", re.IGNORECASE | re.ASCII
)
_WIDEST_OFFSET: Final = timedelta(hours=14)  # Kiribati's; no zone is further from UTC

_FEW_SECONDS: Final = 44.5
_YEAR: Final = 365.25 * 86_400
_UNITS: Final = (
    ("minute", 60, 45),
    ("hour", 3_600, 22),
    ("day", 86_400, 26),
    ("month", _YEAR / 12, 11),
    ("year", _YEAR, 2),
)
"""Each unit, its seconds, and the number from which the next unit is used."""


def format_moment(moment: datetime, pattern: str) -> str:
    """Format a date and time with a pattern of moment.js tokens, those of `_TOKENS`.

    Text in `[square brackets]` and all other text is literal.
    Source: https://momentjs.com/docs/#/displaying/format/
    """
    return _FORMAT.sub(
        lambda found: found[0][1:-1] if found[0].startswith("[") else _TOKENS[found[0]](moment),
        pattern,
    )


def parse_utc_offset(text: str) -> tzinfo | None:
    """Parse `UTC`, `UTC+2`, `+2`, `UTC-3:30` or `UTC+0530`. Returns None for other text."""
    found = _UTC_OFFSET.fullmatch(text.strip())
    if found is None or not found[0]:
        return None
    sign, hours, minutes = found.groups()
    if sign is None:
        return UTC
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return timezone(-offset if sign == "-" else offset) if offset <= _WIDEST_OFFSET else None


def describe_duration(duration: timedelta) -> str:
    """Return the approximate duration: `a few seconds`, `3 hours`, `a day`.

    The limits are those of moment.js. Source: https://momentjs.com/docs/#/durations/humanize/
    """
    seconds = max(duration, timedelta(0)).total_seconds()
    if seconds < _FEW_SECONDS:
        return "a few seconds"
    for name, unit, below in _UNITS:
        count = int(seconds / unit + 0.5)
        if count <= 1:
            return f"{'an' if name == 'hour' else 'a'} {name}"
        if count < below:
            return f"{count} {name}s"
    return f"{int(seconds / _YEAR + 0.5)} years"


def describe_difference(first: str, second: str) -> str | None:
    """Return the first time relative to the second: `3 hours ago`, `in 2 days`.

    Both are ISO 8601 dates with or without time. Returns None if one is invalid.
    """
    try:
        left, right = (datetime.fromisoformat(each.strip()) for each in (first, second))
    except ValueError:
        return None
    if (left.tzinfo is None) != (right.tzinfo is None):
        left, right = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in (left, right))
    words = describe_duration(abs(left - right))
    return f"in {words}" if left > right else f"{words} ago"


MAX_REPEATED: Final = 1_000
"""Maximum repetitions of line breaks or spaces by one macro."""

TIME: Final = "h:mm A"
DATE: Final = "MMMM D, YYYY"

# Longer numbers are not a dice formula. Shorter ones are checked when they are rolled.
_FORMULA: Final = re.compile(
    r"(?:(?P<dice>\d{0,9})d)?(?P<sides>\d{1,9})\s*(?P<plus>[+-]\s*\d{1,9})?",
    re.IGNORECASE | re.ASCII,
)
_COMMA: Final = re.compile(r"(?<!\\),")


def _value(name: str, read: Callable[[MacroContext], str], *aliases: str) -> Macro:
    """Return a macro for a text that is inserted unchanged."""
    return Macro(name, lambda call: read(call.context), aliases=aliases)


def _field(name: str, read: Callable[[MacroContext], str], *aliases: str) -> Macro:
    """Return a macro for a field that may contain macros itself."""
    return Macro(
        name,
        lambda call: "" if call.put_field(name, read(call.context)) else None,
        aliases=aliases,
    )


def _greeting(call: Invocation) -> str | None:
    """Insert the first message, or an alternate greeting by its number."""
    number = call.text(0).strip() or "0"
    greetings = call.context.greetings
    if not number.isdecimal() or int(number[:9]) >= len(greetings):
        return ""
    name = f"greeting {int(number)}"
    return "" if call.put_field(name, greetings[int(number)]) else None


def _make_repeat(name: str, text: str) -> Macro:
    """Return a macro that repeats a text as often as its argument says, once by default."""

    def repeat(call: Invocation) -> str | None:
        count = call.text(0).strip() or "1"
        if not count.isdecimal():
            return None
        times = int(count[:9])
        call.keep_within(MAX_REPEATED, times, unit=f"times {name}")
        return text * times

    return Macro(name, repeat, most=1)


def _make_ignored(name: str, *aliases: str) -> Macro:
    return Macro(name, _nothing, most=None, aliases=aliases, is_ignored=True)


def _moment(name: str, pattern: str) -> Macro:
    return Macro(name, lambda call: format_moment(call.context.now, pattern))


def _nothing(_: Invocation) -> str:
    return ""


def _trim(call: Invocation) -> str:
    call.trim()
    return ""


def _outlet(call: Invocation) -> str:
    return call.context.outlets.get(call.text(0).strip(), "")


def _time(call: Invocation) -> str | None:
    if not call.arguments:
        return format_moment(call.context.now, TIME)
    zone = parse_utc_offset(call.text(0))
    return None if zone is None else format_moment(call.context.now.astimezone(zone), TIME)


def _time_difference(call: Invocation) -> str | None:
    return describe_difference(call.text(0), call.text(1))


def _choose(call: Invocation, seed: int) -> str:
    options = call.arguments
    if not options:
        return ""
    if len(options) == 1:  # the older list with commas, in which `\,` is a literal comma
        options = [
            [part.replace("\\,", ",") if isinstance(part, str) else part for part in option]
            for option in split(options[0], _COMMA)
        ]
    (index,) = call.draw(seed, choices=len(options))
    call.put(options[index])
    return ""


def _roll(call: Invocation) -> str:
    """Roll `2d6+1`, `d20`, or `20` for one die of 20 sides. Other text gives an empty result."""
    found = _FORMULA.fullmatch(call.text(0).strip())
    if found is None or int(found["sides"]) == 0:
        return ""
    dice, sides = int(found["dice"] or 1), int(found["sides"])
    call.keep_within(MAX_DICE, dice, unit="dice in a roll")
    call.keep_within(MAX_SIDES, sides, unit="sides on a die")
    plus = "".join((found["plus"] or "0").split())
    drawn = call.draw(call.context.message_seed, choices=sides, count=dice)
    return str(sum(drawn) + dice + int(plus))


def _variable_macros(scope: Scope, infix: str) -> Iterator[Macro]:
    def get(call: Invocation) -> str:
        return format_value(call.get_variable(scope, call.text(0).strip()))

    def has(call: Invocation) -> str:
        return _format_boolean(call.has_variable(scope, call.text(0).strip()))

    def delete(call: Invocation) -> str:
        call.delete_variable(scope, call.text(0).strip())
        return ""

    def put(call: Invocation) -> str:
        call.set_variable(scope, call.text(0).strip(), call.text(1))
        return ""

    def add(call: Invocation) -> str:
        name, more = call.text(0).strip(), call.text(1)
        call.set_variable(scope, name, add_values(call.get_variable(scope, name), more))
        return ""

    def count(call: Invocation, step: int) -> str:
        name = call.text(0).strip()
        value = increment(call.get_variable(scope, name), step)
        call.set_variable(scope, name, value)
        return value

    yield Macro(f"get{infix}var", get, 1, 1)
    yield Macro(f"set{infix}var", put, 2, 2)
    yield Macro(f"add{infix}var", add, 2, 2)
    yield Macro(f"inc{infix}var", lambda call: count(call, 1), 1, 1)
    yield Macro(f"dec{infix}var", lambda call: count(call, -1), 1, 1)
    yield Macro(f"has{infix}var", has, 1, 1, aliases=(f"{infix}varexists",))
    yield Macro(f"delete{infix}var", delete, 1, 1, aliases=(f"flush{infix}var",))


def _format_boolean(value: bool) -> str:  # noqa: FBT001  # its only argument
    return "true" if value else "false"


def _shorthand(scope: Scope) -> Run:
    """Return the macro for `{{.hp}}` and operations such as `{{.hp += 2}}`."""

    def operate(call: Invocation) -> str | None:  # noqa: PLR0911  # one case per operator
        name, operator = call.text(0), call.text(1)
        value = call.get_variable(scope, name)
        match operator:
            case "":
                return format_value(value)
            case "=":
                call.set_variable(scope, name, call.text(2))
                return ""
            case "+=":
                call.set_variable(scope, name, add_values(value, call.text(2)))
                return ""
            case "-=":
                call.set_variable(scope, name, subtract_values(value, call.text(2)))
                return ""
            case "++" | "--":
                value = increment(value, 1 if operator == "++" else -1)
                call.set_variable(scope, name, value)
                return value
            case "||" | "??" | "||=" | "??=":
                is_there = call.has_variable(scope, name)
                if is_there if operator[0] == "?" else is_true(value):
                    return format_value(value)
                value = call.text(2)
                if operator[2:] == "=":
                    call.set_variable(scope, name, value)
                return value
            case _:
                order = compare_values(value, call.text(2))
                return _format_boolean(_ORDERS[operator](order))

    return operate


_ORDERS: Final[Mapping[str, Callable[[int], bool]]] = {
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def _range(last: str) -> str:
    return f"0-{last}" if last else ""


_INSTRUCT: Final = (
    *("AssistantPrefix", "AssistantSuffix", "FirstAssistantPrefix", "FirstInput"),
    *("FirstOutputPrefix", "FirstUserPrefix", "Input", "LastAssistantPrefix", "LastInput"),
    *("LastOutputPrefix", "LastUserPrefix", "Output", "Separator", "Stop"),
    *("StoryStringPrefix", "StoryStringSuffix", "System", "SystemInstructionPrefix"),
    *("SystemPrefix", "SystemPrompt", "SystemSuffix", "UserFiller", "UserPrefix", "UserSuffix"),
)
"""Macros of instruct mode, which wraps messages for text completion models."""

_MACROS: Final[Sequence[Macro]] = (
    _value("user", lambda context: context.user),
    _value("char", lambda context: context.char),
    _value("group", lambda context: context.group or context.char, "charIfNotGroup"),
    _value(
        "groupNotMuted",
        lambda context: context.group_not_muted if context.group else context.char,
    ),
    _value("notChar", lambda context: context.not_char or context.user),
    _value("charVersion", lambda context: context.char_version, "char_version"),
    _field("persona", lambda context: context.persona),
    _field("description", lambda context: context.description, "charDescription"),
    _field("personality", lambda context: context.personality, "charPersonality"),
    _field("scenario", lambda context: context.scenario, "charScenario"),
    _field("mesExamples", lambda context: context.mes_examples, "mesExamplesRaw"),
    _field("charPrompt", lambda context: context.char_prompt),
    _field("charInstruction", lambda context: context.char_instruction),
    _field("charDepthPrompt", lambda context: context.char_depth_prompt),
    _field("creatorNotes", lambda context: context.creator_notes, "charCreatorNotes"),
    Macro("greeting", _greeting, most=1, aliases=("charFirstMessage",)),
    _field("original", lambda context: context.original or ""),
    _field("authorsNote", lambda context: context.authors_note),
    _value("lastMessage", lambda context: context.last_message),
    _value("lastUserMessage", lambda context: context.last_user_message),
    _value("lastCharMessage", lambda context: context.last_char_message),
    _value("lastMessageId", lambda context: context.last_message_id),
    _value("allChatRange", lambda context: _range(context.last_message_id)),
    _value("lastSwipeId", lambda context: context.last_swipe_id),
    _value("currentSwipeId", lambda context: context.current_swipe_id),
    _value("lastGenerationType", lambda context: context.last_generation_type),
    _value("summary", lambda context: context.summary),
    _value("model", lambda context: context.model),
    _value("maxPrompt", lambda context: str(context.max_prompt), "maxPromptTokens"),
    _value("maxResponse", lambda context: str(context.max_response), "maxResponseTokens"),
    _value(
        "maxContext",
        lambda context: str(context.max_prompt + context.max_response),
        "maxContextTokens",
    ),
    _value("idleDuration", lambda context: describe_duration(context.idle), "idle_duration"),
    Macro("timeDiff", _time_difference, 2, 2),
    Macro("outlet", _outlet, 1, 1),
    Macro("time", _time, most=1, aliases=("time_UTC",)),
    _moment("date", DATE),
    _moment("weekday", "dddd"),
    _moment("isotime", "HH:mm"),
    _moment("isodate", "YYYY-MM-DD"),
    Macro("datetimeformat", lambda call: format_moment(call.context.now, call.text(0)), 1, 1),
    Macro("random", lambda call: _choose(call, call.context.message_seed), 0, None),
    Macro("pick", lambda call: _choose(call, call.context.chat_seed), 0, None),
    Macro("roll", _roll, 1, 1),
    _make_repeat("newline", "\n"),
    _make_repeat("space", " "),
    Macro("noop", _nothing),
    Macro("else", _nothing),
    Macro("trim", _trim),
    Macro("reverse", lambda call: call.text(0)[::-1], 1, 1),
    Macro("//", _nothing, most=None),
    Macro("comment", _nothing, most=None),
    Macro("hidden_key", _nothing, most=None),
    Macro("banned", _nothing, most=None),
    Macro("isMobile", lambda _: "false"),
    Macro("hasExtension", lambda _: "false", 1, 1),
    _make_ignored("input"),
    _make_ignored("version"),
    _make_ignored("systemPrompt", "defaultSystemPrompt"),
    _make_ignored("firstIncludedMessageId", "firstDisplayedMessageId"),
    _make_ignored("chatStart", "chatSeparator", "exampleSeparator"),
    _make_ignored("instruct", *(f"instruct{name}" for name in _INSTRUCT)),
    Macro(".", _shorthand("local"), 3, 3, is_operation=True),
    Macro("$", _shorthand("global"), 3, 3, is_operation=True),
    *_variable_macros("local", ""),
    *_variable_macros("global", "global"),
)

MACROS: Final[Mapping[str, Macro]] = {
    name.lower(): macro for macro in _MACROS for name in (macro.name, *macro.aliases)
}
"""By name and alias, in lower case. `if` and the closing `/name` are syntax, not macros."""
