"""Events between packages.

A package declares each of its events as a protocol with one method, such as
`ChatCopied.chat_copied`, and calls every participant that has this method. Packages above it
inherit the protocol, so that types are checked. `container` makes one list of participants for all
services.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

P = TypeVar("P")


class Participants:
    """The services that handle events, in the order in which they were added."""

    def __init__(self, *parts: object) -> None:
        self._parts = list(parts)

    def add(self, *parts: object) -> None:
        self._parts += parts

    def find_handlers(self, event: type[P]) -> Iterator[P]:
        return (part for part in self._parts if isinstance(part, event))
