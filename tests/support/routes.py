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
        return self.path.format_map(values)


def routes_of(app: Litestar) -> list[Route]:
    """All routes, but the `OPTIONS` that Litestar adds to each."""
    return [
        Route(
            method,
            route.path_format,
            tuple(route.path_parameters),
            handler,
        )
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
        if method != "OPTIONS"
    ]
