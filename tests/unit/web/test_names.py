"""Shorter names of scripts: each still means the same, and no name that others see changes."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from backend.web import controller
from backend.web.controller import PageFiles
from backend.web.names import (
    EXPORT as DECLARED,
)
from backend.web.names import (
    Binding,
    NameScope,
    choose_exports,
    load_parser,
    read_children,
    resolve_uses,
    shorten_names,
)
from tests.support.npm import install_packages, run_script

pytestmark = pytest.mark.anyio

IMPORT = re.compile(r"\bimport\{([^}]*)\}from\"([^\"]*)\"")
EXPORTED = re.compile(r"\bexport\*from\"([^\"]*)\"")
EXPORT = re.compile(r"\bexport (?:async )?(?:const|let|class|function\*?) ?\[?([\w$,]+)")

CASES = {
    "imports": """
        import{alpha,beta as gamma}from"./x.js";export const f=(first,g=first)=>alpha(g,gamma);
        import{alpha,beta}from"./x.js";export let f=(e,g=e)=>alpha(g,beta);
    """,
    "patterns": """
        export const read=({value,other:named=value,...rest})=>({value,named,rest});
        export let read=({value,other:e=value,...t})=>({value,named:e,rest:t});
    """,
    "keys": """
        const key="k";export const made={[key](key){return key},get key(){return key}};
        let e="k";export let made={[e](e){return e},get key(){return e}};
    """,
    "var": """
        export function f(){for(var count=0;;){var inside=count}return inside+count}
        export function f(){for(var e=0;;){var t=e}return t+e}
    """,
    "parameters": """
        export const f={turned(all,unused){let first=g(all);return first}};
        export let f={turned(e,t){let n=g(e);return n}};
    """,
    "catch": """
        export function f(text){try{g(text)}catch(error){let other=text;g(other)}}
        export function f(e){try{g(e)}catch(t){let n=e;g(n)}}
    """,
    "blocks": """
        export function f(list){for(const it of list){const list=it;g(list)}try{}catch({at}){g(at)}}
        export function f(e){for(const t of e){const e=t;g(e)}try{}catch({at}){g(at)}}
    """,
    "defaults": """
        const name=1;export function f(value=name){const name=value;return()=>use(name)}
        let e=1;export function f(t=e){const e=t;return()=>use(e)}
    """,
    "hoisting": """
        export function f(){{let inner=1;g(inner);{var outer=2}g(inner)}return outer}
        export function f(){{let t=1;g(t);{var e=2}g(t)}return e}
    """,
    "exports": """
        let total=0;export{total as sum};export const add=amount=>{total+=amount};
        let total=0;export{total as sum};export let add=e=>{total+=e};
    """,
    "exported imports": """
        import{alpha as beta}from"./x.js";import{default as view}from"./y.js";export{beta};use(beta)
        import{alpha as beta}from"./x.js";import{default as e}from"./y.js";export{beta};use(beta)
    """,
    "globals": """
        const again=function deeper(depth){return depth?deeper(depth-1):e};use(again);
        let t=function t(n){return n?t(n-1):e};use(t);
    """,
    "classes": """
        class Shape{#hidden=1;width=0;static make(width){return new Shape(width)}}use(Shape);
        class e{#hidden=1;width=0;static make(t){return new e(t)}}use(e);
    """,
}
"""A script, and below it the same script with short names."""


@pytest.mark.parametrize("lines", CASES.values(), ids=CASES)
def test_names_that_only_the_script_sees_are_shortened(lines: str) -> None:
    script, expected = (line.strip() for line in lines.strip().splitlines())
    assert shorten_names(script) == expected


def test_an_export_has_the_same_short_name_in_all_modules() -> None:
    scripts = {
        "x/one.js": "\nexport const alpha = 1;\nexport async function beta() {}\n",
        "two.js": 'import { alpha, beta as own } from "./x/one.js";\nexport class Gamma {}\n',
        "lazy.js": "\nexport const delta = 2;\n",
        "deep.js": "\nexport const epsilon = 3;\n",
        "barrel.js": 'export * from "./deep.js";\n',
        "main.js": 'import { alpha } from "./x/one.js";\nimport("./lazy.js");\n'
        'import * as all from "./barrel.js";\n',
    }
    exports = choose_exports(scripts)
    assert exports == {"alpha": "e", "beta": "t", "Gamma": "n"}

    module = 'import{alpha,beta as own}from"./x/one.js";export class Gamma{};use(alpha,own,own)'
    short = 'import{e,t}from"./x/one.js";export class n{};use(e,t,t)'
    assert shorten_names(module, exports) == short


def read_exports(scripts: Mapping[str, str], name: str) -> set[str]:
    declared = set(",".join(EXPORT.findall(scripts[name])).split(","))
    others = [read_exports(scripts, find(name, each)) for each in EXPORTED.findall(scripts[name])]
    return declared.union(*others)


def find(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def test_every_import_of_the_page_is_an_export_of_its_module() -> None:
    scripts = {name: file.plain.decode() for name, file in PageFiles() if name.endswith(".js")}
    for name, text in scripts.items():
        for names, target in IMPORT.findall(text):
            imported = {each.split(" as ")[0] for each in names.split(",")}
            assert imported <= read_exports(scripts, find(name, target)), (name, target)


def test_a_script_with_errors_stays_as_it_is() -> None:
    assert shorten_names("const wrong=;use(wrong)") == "const wrong=;use(wrong)"


def keep_names(text: str, exports: Mapping[str, str]) -> str:
    return text


@pytest.mark.npm
async def test_the_scripts_of_the_page_are_the_same_programs_with_short_names(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install_packages(pytestconfig)
    shortened = {name: file.plain for name, file in PageFiles() if name.endswith(".js")}
    monkeypatch.setattr(controller, "shorten_names", keep_names)
    for name, file in PageFiles():
        if name in shortened:
            for folder, data in (("long", file.plain), ("short", shortened[name])):
                path = tmp_path / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)

    exports = tmp_path / "exports.json"
    exports.write_text(json.dumps(PageFiles().exports))
    paths = (str(tmp_path / "long"), str(tmp_path / "short"), str(exports))
    different = await run_script(packages, "names.mjs", *paths)

    assert different == []


def test_what_a_module_uses_of_another_one_is_imported() -> None:
    """Without its import, a name fails only when the code runs."""
    texts = {path: path.read_text(encoding="utf-8") for path in controller.FOLDER.rglob("*.js")}
    exports = {name for text in texts.values() for name in DECLARED.findall(text)}
    missing: dict[str, set[str]] = {}
    for path, text in texts.items():
        module, unknown = NameScope(None, is_function=True), dict[str, Binding]()
        read_children(load_parser().parse(text.encode()).root_node, module)
        resolve_uses(module, unknown)
        if found := unknown.keys() & exports:
            missing[path.name] = found
    assert missing == {}
