"""What this process has prepared: the scripts of each plan and of each choice, and what it has said of its layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from limits_app.core.claim import Claim
from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Plan
from limits_app.stores.codecs import Codecs
from limits_app.stores.redis.choosing import Choice
from limits_app.stores.redis.codec import Codec
from limits_app.stores.redis.commands import Plain
from limits_app.stores.redis.names import Names
from limits_app.stores.redis.plans import PreparedPlan

__all__ = ["Preparations"]

_MOST_PLANS: Final = 16_384
_MOST_CHOICES: Final = 1024
_SECONDS_BETWEEN_DEFINITIONS: Final = 60.0
_DEFINITIONS_LIVE_MS: Final = b"31622400000"


class Preparations:
    """What was prepared, and is again when it was forgotten."""

    def __init__(self, links: Any, names: Names, codecs: Codecs[Codec]) -> None:
        self._links = links
        self._names = names
        self._codecs = codecs
        self._plans: dict[Plan, PreparedPlan] = {}
        self._choices: dict[tuple[frozenset[Plan], bool, bool], Choice] = {}
        self._defined: dict[bytes, float] = {}
        self.known = self._plans.get
        """What was prepared for a plan, or None."""

    def plan(self, plan: Plan) -> PreparedPlan:
        """Prepare a plan; the server may be told of its layouts."""
        prepared = self._plans.get(plan)
        if prepared is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            prepared = self._plans[plan] = PreparedPlan(plan, self._names, self._codecs)
            self.define(prepared.codecs)
        return prepared

    def known_choice(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Choice | None:
        """What was prepared for choosing among claims, or None; always None where that takes several steps."""
        plans = frozenset([claim.plan for claim in claims])
        choice = self._choices.get((plans, emptiest_first, failover))
        return None if choice is None or not choice.possible or len(plans) < len(claims) else choice

    def choice(self, claims: Sequence[Claim], *, emptiest_first: bool, failover: bool) -> Choice | None:
        """Prepare to choose among claims, or None where that takes several steps.

        The server may be told of their layouts.
        """
        plans = frozenset([claim.plan for claim in claims])
        choice = self._choices.get((plans, emptiest_first, failover))
        if choice is None:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            prepared = {plan: self.plan(plan) for plan in plans}
            choice = Choice(prepared, emptiest_first=emptiest_first, failover=failover)
            self._choices[plans, emptiest_first, failover] = choice
        return choice if choice.possible and len(plans) == len(claims) else None

    def define(self, codecs: Iterable[Codec]) -> None:
        """Write the definitions of layouts where records may be new, for those who come after a change."""
        now = monotonic()
        for codec in codecs:
            if now - self._defined.get(codec.name, -_SECONDS_BETWEEN_DEFINITIONS) >= _SECONDS_BETWEEN_DEFINITIONS:
                name = self._names.definitions(codec.name)
                self._links.run(Plain(b"SET", name, codec.definitions, b"PX", _DEFINITIONS_LIVE_MS))
                self._defined[codec.name] = now

    def define_anew(self, codecs: Iterable[Codec]) -> None:
        """The same where something was decided already, which does not fail by this."""
        with suppress(StoreUnavailable):
            self.define(codecs)
