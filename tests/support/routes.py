"""Every route that the application has, so that a test can't forget one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute


@dataclass(frozen=True)
class Route:
    """A method on a path. `path` is a template: `/api/v1/chats/{chat_id}`."""

    method: str
    path: str
    parameters: tuple[str, ...]
    handler: HTTPRouteHandler

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def filled(self, values: dict[str, Any]) -> str:
        """The path with these values in the places of its parameters."""
        return filled(self.path, values)


def filled(path: str, values: dict[str, Any]) -> str:
    """Fill the parameters of a path.

    A value may be named by what stands before it, too: `threads/item_id`.
    """
    parts: list[str] = []
    for part in path.split("/"):
        name = part[1:-1] if part.startswith("{") else ""
        before = f"{parts[-1]}/{name}" if parts else ""
        parts.append(str(values[before if before in values else name]) if name else part)
    return "/".join(parts)


def routes_of(app: Litestar) -> list[Route]:
    """All routes, but the `OPTIONS` that Litestar adds to each."""
    return [
        Route(method, route.path_format, tuple(route.path_parameters), handler)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if method != "OPTIONS"
    ]
