"""Requests that schemathesis generates, their accounts and their checks."""

# The types of schemathesis say less than pyright wants to know.
# pyright: reportUnknownVariableType=false, reportArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from scripts.torture.client import PASSWORD

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
STEPS = 12
"""Requests of one walk along links."""
WALKS = 10
"""Walks with shared draws. Hypothesis expects the same answers to the same draws, but a server has
state. After it notices a difference, the walks continue with new draws."""

MOST_FAULTS = 20
"""After which walking along links ends."""

ENDS_ACCOUNTS = {"deleteMe", "changePassword", "newRecoveryCode", "recover"}
"""Operations that get an account of their own each time, and its password, at least at times."""


def count_examples(requests: int, operations: int) -> int:
    """Examples of each operation, where two thirds of so many requests are not along links."""
    return max(1, 2 * requests // 3 // operations)


def profile(examples: int, *, derandomize: bool = True, **more: Any) -> settings:
    """Hypothesis' settings: no clock, no memory of earlier runs, the same draws at each run."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
        **more,
    )


@dataclass
class Explorer:
    """A sender of cases as an account with all rights. `asked` counts answers by status.

    A new account is made where the last one was ended or locked out by what it was made to send.
    """

    url: str
    token: str = ""
    asked: Counter[int] = field(default_factory=Counter[int])

    def sign_up(self) -> None:
        with httpx.Client(base_url=f"{self.url}/api/v1", timeout=60, trust_env=False) as client:
            name = uuid4()
            body = {"username": f"explorer-{name}", "password": PASSWORD}
            # One address may make only so many accounts.
            address = {"x-forwarded-for": ".".join(["10", *map(str, name.bytes[:3])])}
            client.post("/accounts", json=body, headers=address).raise_for_status()
            csrf = {"x-csrftoken": client.cookies["csrftoken"]}
            key = {"label": "explorer", "scope": "manage"}
            made = client.post("/api-keys", json=key, headers=csrf).raise_for_status()
        self.token = made.json()["token"]

    def prepare(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
        """Return the arguments of a call. Every second call that ends an account is valid."""
        name = case.operation.definition.raw["operationId"]
        if not self.token or name in ENDS_ACCOUNTS:
            self.sign_up()
        body: Any = case.body
        if name in ENDS_ACCOUNTS and isinstance(body, dict) and self.asked.total() % 2:
            for member in ("password", "current_password"):
                if member in body:
                    body[member] = PASSWORD
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.token}"},
            "timeout": 60,
        }

    def took(self, status: int, case: schemathesis.Case[Any]) -> None:
        self.asked[status] += 1
        public = case.operation.definition.raw.get("security") == []
        if status == 401 and not public:
            self.token = ""

    def explore(self, case: schemathesis.Case[Any]) -> None:
        """Send a case, and hold its answer against the document."""
        options = self.prepare(case)
        response = case.call(**options)
        self.took(response.status_code, case)
        case.validate_response(response, checks=CHECKS)


def list_operations(document: dict[str, Any]) -> list[Any]:
    return [result.ok() for result in _schema(document).get_all_operations()]


def explore_operations(
    explorer: Explorer, operations: Sequence[Any], examples: int, tell: Callable[[str], None]
) -> list[str]:
    """Send generated requests to operations; return the failures."""
    faults: list[str] = []
    for operation in operations:
        tell(f"{explorer.asked.total()} requests, at {operation.label}")

        @profile(examples)
        @given(case=operation.as_strategy())
        def ask(case: schemathesis.Case[Any]) -> None:
            explorer.explore(case)

        try:
            ask()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # each is told of
            faults.append(f"{operation.label}: {_told(error)}")
    return faults


def explore_links(
    explorer: Explorer,
    document: dict[str, Any],
    requests: int,
    tell: Callable[[str], None],
) -> list[str]:
    """Follow links between answers for a number of requests; return the failures."""

    class Walk(_schema(document).as_state_machine()):  # type: ignore[misc]  # made at run time
        def get_call_kwargs(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
            return explorer.prepare(case)

        def after_call(self, response: Any, case: schemathesis.Case[Any]) -> None:
            super().after_call(response, case)
            explorer.took(response.status_code, case)

        def validate_response(self, response: Any, case: schemathesis.Case[Any], **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    faults: list[str] = []
    settings = profile(WALKS, stateful_step_count=STEPS, derandomize=False)
    for number in range(1 + requests):  # a walk that asks nothing must not go on for good
        if explorer.asked.total() >= requests or len(faults) >= MOST_FAULTS:
            break
        tell(f"{explorer.asked.total()} requests along links")
        seed(number)(Walk)
        try:
            Walk.run(settings=settings)
        except FlakyStrategyDefinition:
            continue
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # each is told of
            faults.append(f"along links: {_told(error)}")
    return faults


def _schema(document: dict[str, Any]) -> Any:
    return schemathesis.openapi.from_dict(document)


def _told(error: BaseException) -> str:
    """An error with those that it is made of."""
    inner = getattr(error, "exceptions", ())
    return "; ".join(map(_told, inner)) if inner else f"{type(error).__name__}: {error}"
