"""The themes of the page: text has a contrast of at least 4.5 to 1 (WCAG)."""

from __future__ import annotations

import re

import pytest

from backend.web.controller import FOLDER

THEMES = ("light", "dark", "sepia", "night")

TEXTS = {
    "ink": ("paper", "sheet", "raised", "sunken", "accent-wash", "danger-wash"),
    "soft": ("paper", "sheet", "raised", "sunken", "accent-wash"),
    "accent": ("paper", "sheet", "raised", "accent-wash"),
    "speech": ("paper", "sheet", "accent-wash"),
    "danger": ("paper", "sheet", "raised", "danger-wash"),
    "good": ("paper", "sheet"),
    "accent-ink": ("accent",),
    "paper": ("ink",),
}
"""Colours of text with the colours that it is written on."""

EDGES = {"edge": ("paper", "sheet", "raised"), "focus": ("paper", "sheet", "raised")}
"""Edges of controls, for which 3 to 1 is enough."""

RULE = re.compile(r":root(?:\[data-theme=\"(\w+)\"\])? \{([^}]*)\}")
COLOUR = re.compile(r"--([\w-]+): (?:light-dark\((#\w{6}), (#\w{6})\)|(#\w{6}));")


def read_theme(theme: str) -> dict[str, str]:
    """Return the colours of a theme by name."""
    rules = RULE.findall((FOLDER / "style" / "base.css").read_text(encoding="utf-8"))
    is_dark = any(name == theme and "color-scheme: dark" in body for name, body in rules)
    colours: dict[str, str] = {}
    for name, body in rules:
        if name in {"", theme}:
            for key, light, dark, plain in COLOUR.findall(body):
                colours[key] = plain or (dark if is_dark else light)
    return colours


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ratio(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, 4.5), (EDGES, 3.0)], ids=["texts", "edges"])
def test_every_theme_is_readable(
    theme: str, pairs: dict[str, tuple[str, ...]], least: float
) -> None:
    colours = read_theme(theme)
    weak = {
        f"{front} on {back}": round(found, 2)
        for front, backs in pairs.items()
        for back in backs
        if (found := ratio(colours[front], colours[back])) < least
    }
    assert weak == {}


def mix(one: str, other: str, share: float) -> str:
    """Return a colour with a share of `one`, as CSS mixes colours in sRGB."""
    pairs = [(int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)


@pytest.mark.parametrize("theme", THEMES)
def test_messages_are_readable_on_every_background(theme: str) -> None:
    sheet = (FOLDER / "style" / "chat.css").read_text(encoding="utf-8")
    [rule] = re.findall(r"\.pictured \.track \{([^}]*)\}", sheet)
    softness, veil = (int(each) / 100 for each in re.findall(r"var\(--[\w-]+\) (\d+)%", rule))
    colours = read_theme(theme)
    colours["soft"] = mix(colours["soft"], colours["ink"], softness)
    weak = {
        f"{front} on {picture}": round(contrast, 2)
        for picture in ("#000000", "#ffffff")
        for front in ("ink", "soft", "accent", "speech", "danger")
        if (contrast := ratio(colours[front], mix(colours["paper"], picture, veil))) < 4.5
    }
    assert weak == {}


def test_the_themes_differ() -> None:
    assert len({tuple(sorted(read_theme(theme).items())) for theme in THEMES}) == len(THEMES)
