"""Shorten the names of JavaScript modules.

tree-sitter parses the script. Names of properties and globals stay. An export has the same short
name in all modules, so each module can be shortened without the others. The word `const` of a
module becomes `let`, which is shorter. Nothing else of the script changes.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count, product
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

FIRST_LETTERS = "etnsriaoclduphmfgbywvkxjqzETNSRIAOCLDUPHMFGBYWVKXJQZ_$"
OTHER_LETTERS = FIRST_LETTERS + "0123456789"
"""Letters of names, the most frequent of scripts first, because they compress best."""

KEYWORDS = frozenset(
    {"as", "do", "for", "get", "if", "in", "is", "let", "new", "of", "set", "try", "var"}
)
"""Words of up to three letters that are no names, or not everywhere."""

FUNCTIONS = frozenset(
    {"arrow_function", "function_expression", "generator_function", "method_definition"}
    | {"function_declaration", "generator_function_declaration", "class", "class_declaration"}
)
"""Nodes with a scope of their own for their parameters, and for the name of an expression."""

BLOCKS = frozenset({
    "statement_block", "for_statement", "switch_body", "class_static_block",
})  # fmt: skip
DECLARATIONS = frozenset(
    {"function_declaration", "generator_function_declaration", "class_declaration"}
)
NAMED_EXPRESSIONS = frozenset({"function_expression", "generator_function", "class"})
SHORTHANDS = frozenset({"shorthand_property_identifier", "shorthand_property_identifier_pattern"})


EXPORT = re.compile(r"^export (?:async )?(?:const|let|class|function\*?) ?(\w+)", re.MULTILINE)
OTHER_EXPORT = re.compile(r"^export (?:const |let )?[\[{]([^\]}]*)", re.MULTILINE)
STAR_EXPORT = re.compile(r"^export \* from \"([^\"]+)", re.MULTILINE)
IMPORT = re.compile(r"^import \{([^{}]*)\}", re.MULTILINE)
OBJECT_IMPORT = re.compile(r"(?:import\(\s*[\"`]|\* as \w+ from \")([^\"`$]+)")
"""Imports of a module as an object with its exports, by the address of the module."""
NAME = re.compile(r"\w+")


@dataclass(eq=False, slots=True)
class Binding:
    """A declared name. `is_kept` means that it cannot be changed."""

    name: str
    is_kept: bool = False
    places: list[Node] = field(default_factory=list["Node"])
    short: str = ""
    imported: str = ""
    """The name of an import in the other module."""


@dataclass(eq=False, slots=True)
class NameScope:
    """A part of a script in which names are declared, and the names that are used in it."""

    parent: NameScope | None
    bindings: dict[str, Binding] = field(default_factory=dict[str, Binding])
    uses: list[Node] = field(default_factory=list["Node"])
    children: list[NameScope] = field(default_factory=list["NameScope"])
    outer: set[Binding] = field(default_factory=set[Binding])
    """Names of enclosing scopes, and global names, that are used here or in a scope inside."""
    is_function: bool = False
    is_body: bool = False
    """True if names cannot be those of the scope around it, which has the parameters."""

    def open(self, *, is_function: bool = False, is_body: bool = False) -> NameScope:
        """Add a scope inside this one."""
        inner = NameScope(self, is_function=is_function, is_body=is_body)
        self.children.append(inner)
        return inner

    def find_function(self) -> NameScope:
        """Return the scope of the function or module, in which `var` declares names."""
        scope = self
        while scope.parent is not None and not scope.is_function:
            scope = scope.parent
        return scope

    def declare(self, place: Node, name: str = "", *, is_kept: bool = False) -> Binding:
        """Declare a name, by default that of its place. The place counts as a use."""
        name = name or read_text(place)
        binding = self.bindings.setdefault(name, Binding(name))
        binding.is_kept = binding.is_kept or is_kept
        binding.places.append(place)
        return binding

    def reserve(self, binding: Binding, target: NameScope) -> None:
        """Avoid the name of a `var` of `target` in this scope and in those around it."""
        scope: NameScope | None = self
        while scope is not None and scope is not target:
            scope.outer.add(binding)
            scope = scope.parent


def read_text(node: Node) -> str:
    """Return the source of a node."""
    return (node.text or b"").decode()


def choose_exports(scripts: Mapping[str, str]) -> dict[str, str]:
    """Choose short names for the exports of all modules, by path, the most used names first.

    A name keeps its form if a module is imported as an object, because the names of its exports are
    properties there, and if it is exported in any other way than by its declaration. A module
    with a computed address can only be imported for its default export.
    """
    kept: set[str] = set()
    uses = Counter[str]()
    for path, text in scripts.items():
        for target in OBJECT_IMPORT.findall(text):
            kept.update(iterate_exports(scripts, resolve(path, target)))
        for names in OTHER_EXPORT.findall(text):
            kept.update(NAME.findall(names))
        uses.update(EXPORT.findall(text))
        for names in IMPORT.findall(text):
            uses.update(NAME.findall(names))
    exports = {name for text in scripts.values() for name in EXPORT.findall(text)}
    free = (name for name in iterate_names() if name not in kept)
    return {name: next(free) for name, _ in uses.most_common() if name in exports - kept}


def iterate_exports(scripts: Mapping[str, str], path: str) -> Iterator[str]:
    """Yield the exports of a module, including those of other modules that it exports."""
    text = scripts.get(path, "")
    yield from EXPORT.findall(text)
    for target in STAR_EXPORT.findall(text):
        yield from iterate_exports(scripts, resolve(path, target))


def resolve(path: str, target: str) -> str:
    """Resolve an address in a module."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def shorten_names(text: str, exports: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the script with short names. A script with errors is returned unchanged.

    `exports` has the short names of the exports of all modules.
    """
    tree = load_parser().parse(text.encode())
    if tree.root_node.has_error:
        return text
    module = NameScope(None, is_function=True)
    read_children(tree.root_node, module)
    unknown: dict[str, Binding] = {}
    resolve_uses(module, unknown)
    for binding in module.bindings.values():
        binding.imported = exports.get(binding.imported, binding.imported)
        if binding.is_kept:
            binding.short = exports.get(binding.name, binding.name)
    choose_names(module)
    return replace_names(text.encode(), iterate_bindings(module), find_constants(tree.root_node))


@cache
def load_parser() -> Parser:
    import tree_sitter_javascript  # noqa: PLC0415  # seldom needed
    from tree_sitter import Language, Parser  # noqa: PLC0415  # seldom needed

    return Parser(Language(tree_sitter_javascript.language()))


def read_children(node: Node, scope: NameScope) -> None:
    for child in node.named_children:
        read_node(child, scope)


def read_node(node: Node, scope: NameScope) -> None:
    """Record the declarations and the uses of names in a node."""
    READERS.get(node.type, read_children)(node, scope)


def read_use(node: Node, scope: NameScope) -> None:
    scope.uses.append(node)


def read_block(node: Node, scope: NameScope) -> None:
    read_children(node, scope.open())


def read_variables(node: Node, scope: NameScope) -> None:
    """Record `let`, `const` and `var`."""
    target = scope.find_function() if node.type == "variable_declaration" else scope
    for each in node.named_children:
        name, value = each.child_by_field_name("name"), each.child_by_field_name("value")
        if name is not None:
            read_pattern(name, target, scope, is_kept=is_exported(node))
        if value is not None:
            read_node(value, scope)


def read_catch(node: Node, scope: NameScope) -> None:
    inner = scope.open()
    parameter = node.child_by_field_name("parameter")
    for child in node.named_children:
        if child == parameter:
            read_pattern(child, inner, inner)
        else:
            read_body(child, inner)


def read_body(node: Node, scope: NameScope) -> None:
    """Record the body of a function or of a `catch`. `scope` has the parameters."""
    if node.type == "statement_block":
        read_children(node, scope.open(is_body=True))
    else:
        read_node(node, scope)


def read_export(node: Node, scope: NameScope) -> None:
    """Record a name of `export { name }`."""
    name = node.child_by_field_name("name")
    statement = node.parent.parent if node.parent else None
    is_own = statement is not None and statement.child_by_field_name("source") is None
    if name is not None and name.type == "identifier" and is_own:
        scope.declare(name, is_kept=True)


def is_exported(node: Node) -> bool:
    """True if a declaration is exported by its name."""
    return node.parent is not None and node.parent.type == "export_statement"


def read_function(node: Node, scope: NameScope) -> None:
    """Record a function or class: its name outside or inside, and its parameters inside."""
    name, parameter = node.child_by_field_name("name"), node.child_by_field_name("parameter")
    inner = scope.open()
    own = inner.open(is_function=True)
    for child in node.named_children:
        if child == name and node.type in DECLARATIONS:
            scope.declare(child, is_kept=is_exported(node))
        elif child == name and node.type in NAMED_EXPRESSIONS:
            inner.declare(child)
        elif child == name:
            read_node(child, scope)
        elif child == parameter:
            read_pattern(child, own, own)
        elif child.type == "formal_parameters":
            for each in child.named_children:
                read_pattern(each, own, own)
        else:
            read_body(child, own)


def read_loop(node: Node, scope: NameScope) -> None:
    """Record `for ... of` and `for ... in`."""
    left, kind = node.child_by_field_name("left"), node.child_by_field_name("kind")
    inner = scope.open()
    for child in node.named_children:
        if kind is not None and child == left:
            target = inner.find_function() if read_text(kind) == "var" else inner
            read_pattern(child, target, inner)
        else:
            read_node(child, inner)


def read_pattern(node: Node, target: NameScope, scope: NameScope, *, is_kept: bool = False) -> None:
    """Record the names that a pattern declares. Its defaults and keys are expressions."""
    match node.type:
        case "identifier" | "shorthand_property_identifier_pattern":
            scope.reserve(target.declare(node, is_kept=is_kept), target)
        case "assignment_pattern" | "object_assignment_pattern":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is not None:
                read_pattern(left, target, scope, is_kept=is_kept)
            if right is not None:
                read_node(right, scope)
        case "pair_pattern":
            key, value = node.child_by_field_name("key"), node.child_by_field_name("value")
            if key is not None:
                read_node(key, scope)
            if value is not None:
                read_pattern(value, target, scope, is_kept=is_kept)
        case "object_pattern" | "array_pattern" | "rest_pattern":
            for each in node.named_children:
                read_pattern(each, target, scope, is_kept=is_kept)
        case _:
            read_node(node, scope)


def read_import(node: Node, scope: NameScope) -> None:
    for clause in node.named_children:
        if clause.type != "import_clause":
            continue
        for part in clause.named_children:
            if part.type == "identifier":
                scope.declare(part)
            elif part.type == "namespace_import":
                scope.declare(part.named_children[0])
            else:
                for each in part.named_children:
                    imported = each.child_by_field_name("name")
                    name = each.child_by_field_name("alias") or imported
                    if name is not None and imported is not None:
                        scope.declare(each, read_text(name)).imported = read_text(imported)


READERS: dict[str, Callable[[Node, NameScope], None]] = {
    "identifier": read_use,
    "lexical_declaration": read_variables,
    "variable_declaration": read_variables,
    "for_in_statement": read_loop,
    "catch_clause": read_catch,
    "import_statement": read_import,
    "export_specifier": read_export,
    **dict.fromkeys(SHORTHANDS, read_use),
    **dict.fromkeys(FUNCTIONS, read_function),
    **dict.fromkeys(BLOCKS, read_block),
}
"""The readers of nodes with names. In all others, only the nodes inside matter."""


def resolve_uses(scope: NameScope, unknown: dict[str, Binding]) -> None:
    """Find the binding of every use, and note in each scope between which names pass through."""
    for node in scope.uses:
        name = read_text(node)
        passed: list[NameScope] = []
        at: NameScope | None = scope
        while at is not None and name not in at.bindings:
            passed.append(at)
            at = at.parent
        binding = (
            unknown.setdefault(name, Binding(name, is_kept=True))
            if at is None
            else at.bindings[name]
        )
        binding.places.append(node)
        for each in passed:
            each.outer.add(binding)
    for each in scope.children:
        resolve_uses(each, unknown)


def choose_names(scope: NameScope) -> None:
    """Choose names from the outermost scope inwards, the most used names first."""
    taken = {"default", *(each.short or each.name for each in scope.outer)}
    if scope.is_body and scope.parent is not None:
        taken.update(each.short for each in scope.parent.bindings.values())
    for binding in scope.bindings.values():
        if binding.is_kept:
            taken.add(binding.short)
    for binding in sorted(scope.bindings.values(), key=lambda each: -len(each.places)):
        if binding.is_kept:
            continue
        shortest = next(name for name in iterate_names() if name not in taken)
        names = [binding.imported, binding.name, shortest]
        free = [name for name in names if name and name not in taken]
        binding.short = min(free, key=lambda short: count_bytes(binding, short))
        taken.add(binding.short)
    for each in scope.children:
        choose_names(each)


def count_bytes(binding: Binding, short: str) -> int:
    """Count the bytes of a name at all its places, with `name as short` and `name:short`."""
    return sum(len(get_replacement(binding, node, short)) for node in binding.places)


def get_replacement(binding: Binding, node: Node, short: str) -> str:
    if node.type == "import_specifier" and short != binding.imported:
        return f"{binding.imported} as {short}"
    if node.type in SHORTHANDS and short != binding.name:
        return f"{binding.name}:{short}"
    return short


def find_constants(module: Node) -> Iterator[Node]:
    """Find the word `const` of the declarations of a module."""
    for statement in module.named_children:
        declaration = statement.child_by_field_name("declaration") or statement
        kind = declaration.child_by_field_name("kind")
        if kind is not None and kind.type == "const":
            yield kind


def replace_names(source: bytes, bindings: Iterable[Binding], constants: Iterable[Node]) -> str:
    edits = [
        (node.start_byte, node.end_byte, get_replacement(each, node, each.short).encode())
        for each in bindings
        for node in each.places
    ]
    edits += [(node.start_byte, node.end_byte, b"let") for node in constants]
    edits.sort()
    parts: list[bytes] = []
    end = 0
    for start, stop, new in edits:
        parts += [source[end:start], new]
        end = stop
    return b"".join([*parts, source[end:]]).decode()


def iterate_bindings(scope: NameScope) -> Iterator[Binding]:
    yield from scope.bindings.values()
    for each in scope.children:
        yield from iterate_bindings(each)


def iterate_names() -> Iterator[str]:
    for size in count(1):
        for first, *others in product(FIRST_LETTERS, *[OTHER_LETTERS] * (size - 1)):
            if (name := "".join((first, *others))) not in KEYWORDS:
                yield name
