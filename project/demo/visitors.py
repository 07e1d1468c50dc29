"""The visitors of the demo, and their limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from project.demo import DemoFailed
from project.demo.administrator import Administrator, Limit
from project.demo.browser import Browser
from project.demo.client import Cookies
from project.demo.report import Crowded
from project.demo.server import WORKERS, Address
from project.demo.traffic import ADMITTED, BLOCKED, REFUSED, Request, Response

__all__ = [
    "CHANGING",
    "PING",
    "SLOTS",
    "STREAM",
    "VISITORS",
    "Visitor",
    "crowded",
    "log_in",
    "requests_of_all",
    "set_up",
]

API: Final = "api"
PING: Final = "/api/ping/"
REPORTS: Final = "reports"
STREAM: Final = "/reports/stream/"
SLOTS: Final = WORKERS
"""The concurrency limit of `REPORTS`."""

_YEAR: Final = 365 * 86_400
"""So long that no usage expires during the demo, and all figures are exact."""
_WORDS: Final = {
    "sliding_window": "sliding window",
    "gcra": "GCRA",
    "token_bucket": "token bucket",
    "leaky_bucket": "leaky bucket",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor, with an account or without.

    `calls` is the limit a year (0: blocked), of a policy with this `algorithm`, or of the resource (None).
    """

    name: str
    calls: int
    sends: int
    algorithm: str | None = None
    account: bool = True

    @property
    def limit(self) -> str:
        """The limit as text."""
        if self.algorithm is None:
            return f"{self.calls} a year, of the resource"
        return f"{self.calls} a year, {_WORDS[self.algorithm]}" if self.calls else "blocked"


_CALLS_OF_RESOURCE: Final = 30
VISITORS: Final = (
    Visitor("amber", 150, 220, "sliding_window"),
    Visitor("basil", 60, 110, "gcra"),
    Visitor("cedar", 40, 80, "token_bucket"),
    Visitor("dill", 80, 120, "leaky_bucket"),
    Visitor("elder", 0, 25, "token_bucket"),
    Visitor("fern", _CALLS_OF_RESOURCE, 60),
    Visitor("anonymous", _CALLS_OF_RESOURCE, 60, account=False),
)
CHANGING: Final = VISITORS[2]
"""The visitor whose limit is changed."""


def set_up(administrator: Administrator, passwords: Mapping[str, str]) -> str:
    """Add users, resources, entities, policies and URL rules; return the path of the policy to change."""
    administrator.add_resource(API, "Calls of visitors.")
    administrator.add_resource(REPORTS, "Slow requests with a concurrency limit.")
    administrator.add_endpoint("ping", PING, API)
    administrator.add_endpoint("stream", STREAM, REPORTS)
    administrator.add_policy(API, [_calls(_CALLS_OF_RESOURCE, "fixed_window")])
    administrator.add_policy(REPORTS, [{"kind": "resource", "key": "slots", "capacity": str(SLOTS)}])
    policies = {
        visitor: _add_visitor(administrator, visitor, passwords[visitor.name])
        for visitor in VISITORS
        if visitor.account
    }
    changing = policies[CHANGING]
    if changing is None:
        raise DemoFailed(f"{CHANGING.name} has no policy to change")
    return changing


def log_in(address: Address, passwords: Mapping[str, str]) -> dict[str, Cookies]:
    """Log all visitors in, with separate browsers; return their cookies by name."""
    cookies: dict[str, Cookies] = {visitor.name: {} for visitor in VISITORS}
    for name, password in passwords.items():
        browser = Browser(address)
        browser.sign_in("/login/", name, password)
        cookies[name] = browser.client.cookies
    return cookies


def requests_of_all(cookies: Mapping[str, Cookies]) -> list[Request]:
    """Return the requests of all visitors in turns, so that all visitors send at the same time."""
    most = max(visitor.sends for visitor in VISITORS)
    return [
        Request(visitor.name, PING, cookies[visitor.name])
        for turn in range(most)
        for visitor in VISITORS
        if turn < visitor.sends
    ]


def crowded(visitor: Visitor, responses: Iterable[Response]) -> Crowded:
    """Return the results of one visitor."""
    counts = Counter(response.status for response in responses if response.visitor == visitor.name)
    refused = counts[REFUSED if visitor.calls else BLOCKED]
    return Crowded(visitor.name, visitor.limit, visitor.sends, visitor.calls, counts[ADMITTED], refused)


def _add_visitor(administrator: Administrator, visitor: Visitor, password: str) -> str | None:
    identifier = f"user:{administrator.add_user(visitor.name, password)}"
    if visitor.algorithm is None:
        return None
    administrator.add_entity(identifier, visitor.name)
    limits = [_calls(visitor.calls, visitor.algorithm)] if visitor.calls else []
    effect = "limits" if visitor.calls else "blocked"
    return administrator.add_policy(API, limits, entity=identifier, effect=effect)


def _calls(capacity: int, algorithm: str) -> Limit:
    return {"kind": "call", "capacity": str(capacity), "window_seconds": str(_YEAR), "algorithm": algorithm}
