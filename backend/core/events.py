"""Who takes part in what happens, in the order in which they were added.

A package that something happens in has a protocol of one method for it, such as
`ChatCopied.chat_copied`. Every part that has a method of that name is called; those above that
package inherit the protocol, so that types are checked. `container` makes the one list that all
services share, and adds the parts as it makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

P = TypeVar("P")


class Participants:
    """The parts of the application, for the events of others."""

    def __init__(self, *parts: object) -> None:
        self._parts = list(parts)

    def add(self, *parts: object) -> None:
        """Let further parts take part."""
        self._parts += parts

    def of(self, event: type[P]) -> Iterator[P]:
        """Those who have the method of an event, a runtime-checkable protocol."""
        return (part for part in self._parts if isinstance(part, event))
