"""Access by policies: whether those that apply to one identity block it, exempt it, or limit it.

For each identity the most specific policy over all resources decides, as for limits. A request is blocked if one of its
identities is, else exempt if one of them is, else limited. A policy that blocks a resource decides where that resource
is charged. A client whose own policy is unlimited is not exempt where it has a total of its own, which it is charged
for. The default of the system for each resource neither blocks nor exempts; a blocked total of the system
blocks everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from limits_app.engine.limits import Blocked
from limits_app.models import Emergency, Enforcement, PolicyEffect, PolicyScope
from limits_app.policies.policy_values import ENTITY_FLAGS, EntityPolicies, PolicyValue
from limits_app.policies.precedence import PolicyChoice, applied_policies, judge

_PATTERNS: Final = frozenset({PolicyScope.PATTERN, PolicyScope.PATTERN_ON_RESOURCE, PolicyScope.PATTERN_TOTAL})
EXEMPTING: Final = frozenset({ENTITY_FLAGS, PolicyScope.ENTITY, PolicyScope.PLAN, PolicyScope.PATTERN})
"""The levels of the policies that exempt a client where they are unlimited."""
_BLOCKING: Final = EXEMPTING | {
    PolicyScope.ENTITY_TOTAL,
    PolicyScope.PLAN_TOTAL,
    PolicyScope.PATTERN_TOTAL,
    PolicyScope.SYSTEM_TOTAL,
}
_BLOCKING_A_RESOURCE: Final = frozenset(
    {PolicyScope.ENTITY_ON_RESOURCE, PolicyScope.PLAN_ON_RESOURCE, PolicyScope.PATTERN_ON_RESOURCE}
)


class Access(StrEnum):
    """Whether a request is rejected, is charged nothing, or is subject to limits."""

    BLOCKED = "blocked"
    EXEMPT = "exempt"
    LIMITED = "limited"


@dataclass(frozen=True, slots=True)
class AccessReason:
    """A policy that blocks or exempts an entity: an identity of a request, or one above it."""

    entity: str | None
    policy: PolicyValue

    @property
    def subject(self) -> str | None:
        """The identifier or pattern that is blocked or exempt; None where the system blocks everything."""
        if self.policy.level == PolicyScope.SYSTEM_TOTAL:
            return None
        return self.policy.subject if self.policy.level in _PATTERNS else self.entity


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """The access of a request, with its reason (None: limited), and the blocks in shadow mode, which do not reject."""

    access: Access = Access.LIMITED
    reason: AccessReason | None = None
    shadowed: tuple[AccessReason, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The verdict as plain data, for JSON."""
        reason = self.reason
        return {
            "verdict": self.access.value,
            "subject": None if reason is None else reason.subject,
            "level": None if reason is None else str(reason.policy.level),
            "policy": None if reason is None else reason.policy.policy_id,
        }

    @property
    def blocks_everything(self) -> bool:
        """Whether the system blocks everything."""
        return self.access is Access.BLOCKED and self.reason is not None and self.reason.subject is None


LIMITED: Final = AccessVerdict()


def access_of(
    identities: Iterable[Sequence[EntityPolicies]], switch: Emergency, now: datetime, *, on_resource: bool = False
) -> AccessVerdict:
    """Judge a request by the chains of its identities: each has the identity and the entities above it.

    With `on_resource` the policies are those for a resource, and only blocks of that resource decide.
    """
    mode = switch.at(now).mode
    if mode == Enforcement.OFF:
        return LIMITED
    levels = _BLOCKING_A_RESOURCE if on_resource else _BLOCKING
    exempting: AccessReason | None = None
    shadowed: list[AccessReason] = []
    for links in identities:
        choices = [judge(link, now) for link in links]
        blocks = _blocks(choices, levels)
        if blocks and mode == Enforcement.ENFORCE:
            return AccessVerdict(Access.BLOCKED, blocks[0])
        shadowed += blocks or _blocks([judge(link, now, shadow=True) for link in _in_shadow(links)], levels)
        # What an exempt entity counts for has its own limits.
        exemptions = [] if on_resource else [_exemption(choice) for choice in choices]
        exempting = exempting or (exemptions[0] if exemptions and all(exemptions) else None)
    if exempting is not None:
        return AccessVerdict(Access.EXEMPT, exempting, tuple(shadowed))
    return AccessVerdict(shadowed=tuple(shadowed)) if shadowed else LIMITED


def without_blocks(link: EntityPolicies) -> EntityPolicies:
    """The policies of an entity without those that block it over all resources."""
    policies = [
        policy for policy in link.policies if policy.effect != PolicyEffect.BLOCKED or policy.level not in _BLOCKING
    ]
    return replace(link, policies=tuple(policies))


def _in_shadow(links: Sequence[EntityPolicies]) -> list[EntityPolicies]:
    return [link for link in links if any(policy.enforcement == Enforcement.SHADOW for policy in link.policies)]


def _blocks(choices: Iterable[PolicyChoice], levels: frozenset[str]) -> list[AccessReason]:
    return [
        AccessReason(choice.entity, effective.policy)
        for choice in choices
        for effective in (*choice.limits, *choice.totals)
        if isinstance(effective.limit, Blocked) and effective.policy.level in levels
    ]


def _exemption(choice: PolicyChoice) -> AccessReason | None:
    first = next(iter(applied_policies(choice.verdicts)), None)
    if first is None or first.effect != PolicyEffect.UNLIMITED or first.level not in EXEMPTING:
        return None
    if first.level == PolicyScope.ENTITY and any(
        effective.policy.level == PolicyScope.ENTITY_TOTAL for effective in choice.totals
    ):
        return None  # a policy does not lift the total that the client itself has
    return AccessReason(choice.entity, first)
