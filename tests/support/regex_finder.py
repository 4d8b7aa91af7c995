"""Every regular expression of ours: those of the `backend` modules, and the page's."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import regex  # type: ignore[import-untyped]  # it has no types

import backend
from tests.support.regex_growth import EVERY_START

_PAGE = Path(backend.__file__).parent / "web" / "page"
_CALLS = frozenset(
    ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
)
_AT_THE_HEAD = frozenset(("match", "fullmatch"))
_FILLED_IN = "Ann Bo"
"""The replacement for a value that a pattern gets at run time."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pattern, where it is, and by which methods it is used."""

    where: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


@cache
def python_patterns() -> tuple[list[Found], set[str]]:
    """The patterns of all modules, and where one is made that only running the code can show."""
    found: list[Found] = []
    unknown: set[str] = set()
    modules = list(_modules())
    uses = _Uses(modules)
    for module in modules:
        for path, held in find_held_patterns(module):
            found.append(Found(f"{module.__name__}:{path}", held, uses.of(held)))
        for name, method, pattern in find_inline_patterns(module):
            where = f"{module.__name__}.{name}"
            if pattern is None:
                unknown.add(where)
            else:
                found.append(Found(where, pattern, _counted({method} - {"compile"})))
    return found, unknown


def page_patterns() -> list[Found]:
    """The regular expression literals of the page's scripts, in Python's syntax."""
    return [
        Found(f"{path.relative_to(_PAGE)}:{line}", _from_javascript(source, flags), methods)
        for path in sorted(_PAGE.rglob("*.js"))
        for line, source, flags in _literals(path.read_text())
        for methods in [frozenset((EVERY_START,))]
    ]


def _modules() -> Iterator[ModuleType]:
    for each in pkgutil.walk_packages(backend.__path__, "backend."):
        if ".migrations." not in each.name and not each.name.endswith("__main__"):
            yield importlib.import_module(each.name)


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text()


def find_held_patterns(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any]]]:
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            for member, held in vars(value).items():
                yield from _within(f"{name}.{member}", held)
        elif not inspect.ismodule(value):
            yield from _within(name, value)


def _within(path: str, value: object, depth: int = 0) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, (re.Pattern, regex.Pattern)):
        yield path, cast("re.Pattern[Any]", value)
    elif depth < 4 and isinstance(value, Mapping):
        for key, member in cast("Mapping[object, object]", value).items():
            yield from _within(f"{path}[{key!r}]", key, depth + 1)
            yield from _within(f"{path}[{key!r}]", member, depth + 1)
    elif depth < 4 and isinstance(value, list | tuple | set | frozenset):
        for place, member in enumerate(cast("list[object]", value)):
            yield from _within(f"{path}[{place}]", member, depth + 1)


class _Uses:
    """The uses of patterns, by the modules that name them."""

    def __init__(self, modules: list[ModuleType]) -> None:
        self._methods: dict[int, set[str]] = defaultdict(set)
        for module in modules:
            if not any(isinstance(value, re.Pattern) for value in vars(module).values()):
                continue
            tree = ast.parse(_source(module))
            called = {
                id(node.value): node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    value = vars(module).get(node.id)
                    method = called.get(id(node), "")
                    if isinstance(value, re.Pattern) and method != "pattern":
                        self._methods[id(cast("object", value))].add(method)

    def of(self, pattern: re.Pattern[Any]) -> frozenset[str]:
        """The methods that use a pattern. An unknown use counts as any method."""
        return _counted(self._methods[id(pattern)])


def _counted(methods: set[str]) -> frozenset[str]:
    if methods and methods <= {*_AT_THE_HEAD, "search"}:
        return frozenset(methods)
    return frozenset((EVERY_START,))


def find_inline_patterns(module: ModuleType) -> Iterator[tuple[str, str, re.Pattern[Any] | None]]:
    """Where `re` is called: the function's name, the method, and the pattern if it can be told."""
    source = _source(module)
    if "import re" not in source:
        return
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[first, *_]
                ) if method in _CALLS:
                    yield function.name, method, _evaluated(first, node, vars(module))
                case _:
                    pass


def _evaluated(
    source: ast.expr, call: ast.Call, names: Mapping[str, Any]
) -> re.Pattern[Any] | None:
    flags = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "flags")]
    combined = 0
    for each in flags:
        with suppress(Exception):
            combined |= int(_value(each, names))
    if isinstance(source, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else _filled(part, names)
            for part in source.values
        ]
        return re.compile("".join(map(str, parts)), combined)
    try:
        return re.compile(_value(source, names), combined)
    except Exception:  # noqa: BLE001  # a value of the moment
        return None


def _filled(part: ast.expr, names: Mapping[str, Any]) -> str:
    assert isinstance(part, ast.FormattedValue)
    try:
        return str(_value(part.value, names))
    except Exception:  # noqa: BLE001  # a value of the moment
        return _FILLED_IN


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "<pattern>", "eval"), dict(names))  # noqa: S307  # our own source


_CODE = re.compile(
    r"""(?P<skip>\s++|//[^\n]*+|/\*(?>(?:[^*]|\*(?!/))*)\*/|"(?>(?:[^"\\\n]|\\.)*)"|'(?>(?:[^'\\\n]|\\.)*)')
    |(?P<word>[\w$]++)
    |(?P<literal>/(?>(?:[^/\\\[\n]|\\.|\[(?>(?:[^\]\\\n]|\\.)*)\])+)/(?P<flags>[a-z]*+))
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_TEMPLATE = re.compile(r"(?>(?:[^`\\$]|\\.|\$(?!\{))*)(`|\$\{)", re.DOTALL)
_AFTER_WORDS = frozenset(("return", "of", "in", "case", "typeof", "await", "yield"))


def _literals(script: str) -> Iterator[tuple[int, str, str]]:
    """Line, source and flags of each literal. A slash after a value divides."""
    at, before = 0, ""
    depths: list[int] = []  # braces that are open in each `${` that is
    while at < len(script):
        token = _CODE.match(script, at)
        assert token is not None
        at = token.end()
        text = token[0]
        if token["literal"]:
            if before in {")", "]", "}", "`"} or (
                before[-1:].isalnum() and before not in _AFTER_WORDS
            ):
                at, before = token.start() + 1, "/"
                continue
            yield (
                script.count("\n", 0, token.start()) + 1,
                text.rpartition("/")[0][1:],
                token["flags"],
            )
        if text == "{" and depths:
            depths[-1] += 1
        elif text == "}" and depths:
            depths[-1] -= 1
        is_template = text == "`" or (text == "}" and depths and depths[-1] < 0)
        if is_template:
            if text == "}":
                depths.pop()
            end = _TEMPLATE.match(script, at)
            assert end is not None
            at = end.end()
            if end[1] == "${":
                depths.append(0)
                text = "("
            else:
                text = "`"
        if not token["skip"] or text[0] in "\"'":
            before = text if text[0] not in "\"'" else ")"


_SAID_IN_PYTHON = {"[^]": r"[\s\S]", r"\p{L}": r"\w", r"\p{N}": r"\w"}


def _from_javascript(source: str, flags: str) -> re.Pattern[str]:
    for theirs, ours in _SAID_IN_PYTHON.items():
        source = source.replace(theirs, ours)
    source = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", source)
    known = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
    combined = re.RegexFlag(0)
    for flag in flags:
        combined |= known.get(flag, re.RegexFlag(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `[[`, which Python may read otherwise one day
        return re.compile(source, combined)
