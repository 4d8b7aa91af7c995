"""Shorter names of scripts: each still means the same, and no name that others see changes."""

from __future__ import annotations

import pytest

from backend.web.names import shorten_names


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            'import{alpha,beta as gamma}from"./x.js";'
            "export function shown(first,second=first){return alpha(first,second,gamma)}",
            'import{alpha,beta as e}from"./x.js";export function shown(t,n=t){return alpha(t,n,e)}',
        ),
        (
            "export const read=({value,other:named=value,...rest})=>({value,named,rest});",
            "export const read=({value,other:e=value,...t})=>({value,named:e,rest:t});",
        ),
        (
            'const key="k";export const made={[key](key){return key},get key(){return key}};',
            'const e="k";export const made={[e](e){return e},get key(){return e}};',
        ),
        (
            "export function outer(){for(var count=0;count<3;count++){var inside=count}"
            "return inside+count}",
            "export function outer(){for(var e=0;e<3;e++){var t=e}return t+e}",
        ),
        (
            "export function outer(list){for(const item of list){const list=item;use(list)}"
            "try{use()}catch({message}){use(message)}}",
            "export function outer(e){for(const t of e){const e=t;use(e)}"
            "try{use()}catch({message:e}){use(e)}}",
        ),
        (
            "let total=0;export{total as sum};export const add=amount=>{total+=amount;return`${total}`};",
            "let total=0;export{total as sum};export const add=e=>{total+=e;return`${total}`};",
        ),
        (
            "const again=function deeper(depth){return depth?deeper(depth-1):e};use(again);",
            "const t=function t(n){return n?t(n-1):e};use(t);",
        ),
        (
            "class Shape{#hidden=1;width=0;static make(width){return new Shape(width)}}use(Shape);",
            "class e{#hidden=1;width=0;static make(t){return new e(t)}}use(e);",
        ),
    ],
    ids=["imports", "patterns", "keys", "var", "blocks", "exports", "globals", "classes"],
)
def test_names_that_only_the_script_sees_are_shortened(script: str, expected: str) -> None:
    assert shorten_names(script) == expected


def test_a_script_that_is_not_understood_stays_as_it_is() -> None:
    assert shorten_names("const wrong=;export const right=wrong") == (
        "const wrong=;export const right=wrong"
    )
