"""What a request tells about the program that sent it."""

from __future__ import annotations

import re

_BROWSERS = (
    # The first that fits: most browsers name the ones that they descend from, too.
    ("Firefox/", "Firefox"),
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "Mac"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_PRODUCT = re.compile(r"[\w.-]{1,40}")


def describe_client(user_agent: str) -> str:
    """A browser and its system, such as `Firefox on Linux`, or the name of a program.

    Versions are left out: they say more about a person than is needed to recognise a device.
    """
    browser = _first(_BROWSERS, user_agent)
    system = _first(_SYSTEMS, user_agent)
    if browser and system:
        return f"{browser} on {system}"
    product = _PRODUCT.match(user_agent)
    return browser or system or (product[0] if product else "")


def _first(names: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for sign, name in names if sign in text), "")
