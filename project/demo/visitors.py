"""Who visits the demo, what holds for each, and how an administrator sets it."""

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
"""How many requests may hold a permit of `REPORTS` at the same time."""

_YEAR: Final = 365 * 86_400
"""Nothing that is used comes back during the demo, so that every figure can be exact."""
_WORDS: Final = {
    "sliding_window": "sliding window",
    "gcra": "GCRA",
    "token_bucket": "token bucket",
    "leaky_bucket": "leaky bucket",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody with an account, or (`account=False`) anybody else.

    `calls` a year are admitted (0: blocked), by a policy of their own with an `algorithm`, or as for everybody (None).
    """

    name: str
    calls: int
    sends: int
    algorithm: str | None = None
    account: bool = True

    @property
    def limit(self) -> str:
        """What holds, in words."""
        if self.algorithm is None:
            return f"{self.calls} a year, as for everybody"
        return f"{self.calls} a year, {_WORDS[self.algorithm]}" if self.calls else "blocked"


_EVERYBODY: Final = 30
VISITORS: Final = (
    Visitor("amber", 150, 220, "sliding_window"),
    Visitor("basil", 60, 110, "gcra"),
    Visitor("cedar", 40, 80, "token_bucket"),
    Visitor("dill", 80, 120, "leaky_bucket"),
    Visitor("elder", 0, 25, "token_bucket"),
    Visitor("fern", _EVERYBODY, 60),
    Visitor("anonymous", _EVERYBODY, 60, account=False),
)
CHANGING: Final = VISITORS[2]
"""Whose limit is changed while requests flow."""


def set_up(administrator: Administrator, passwords: Mapping[str, str]) -> str:
    """Make users, resources, entities, policies and endpoints; gives the path of the policy that will be changed."""
    administrator.add_resource(API, "What visitors call.")
    administrator.add_resource(REPORTS, "What takes long, so that only a few may run at once.")
    administrator.add_endpoint("ping", PING, API)
    administrator.add_endpoint("stream", STREAM, REPORTS)
    administrator.add_policy(API, [_calls(_EVERYBODY, "fixed_window")])
    administrator.add_policy(REPORTS, [{"kind": "resource", "key": "slots", "capacity": str(SLOTS)}])
    policies = {
        visitor: _add_visitor(administrator, visitor, passwords[visitor.name])
        for visitor in VISITORS
        if visitor.account
    }
    changing = policies[CHANGING]
    if changing is None:
        raise DemoFailed(f"{CHANGING.name} has no policy that could be changed")
    return changing


def log_in(address: Address, passwords: Mapping[str, str]) -> dict[str, Cookies]:
    """Log everybody in, each in a browser of their own; gives their cookies by name."""
    cookies: dict[str, Cookies] = {visitor.name: {} for visitor in VISITORS}
    for name, password in passwords.items():
        browser = Browser(address)
        browser.sign_in("/login/", name, password)
        cookies[name] = browser.client.cookies
    return cookies


def requests_of_all(cookies: Mapping[str, Cookies]) -> list[Request]:
    """Everything that the visitors send, in turns, so that all of them are there at the same time."""
    most = max(visitor.sends for visitor in VISITORS)
    return [
        Request(visitor.name, PING, cookies[visitor.name])
        for turn in range(most)
        for visitor in VISITORS
        if turn < visitor.sends
    ]


def crowded(visitor: Visitor, responses: Iterable[Response]) -> Crowded:
    """What came of the requests of one visitor."""
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
