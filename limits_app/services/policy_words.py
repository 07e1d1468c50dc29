"""Whom policies are about, in words: “Each client on api”, or “All clients together on api” for shared limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.models import TOTALS, Candidate, CountedBy, Endpoint, Policy, Resource
from limits_app.models.prefixes import ADDRESS, API_KEY, USER, each_of
from limits_app.services.clients import with_name
from limits_app.services.display import moment
from limits_app.services.rule_labels import label_of, resource_labels, rules_of_resources

_WHERE: Final[Mapping[str, Any]] = {
    "on_resource": _("%(whom)s on %(resource)s"),
    "total": _("%(whom)s, over all resources together"),
    "": _("%(whom)s, on each resource"),
}
_EACH_OF: Final[Mapping[str, Any]] = {
    each_of(USER): _("Each user"),
    each_of(ADDRESS): _("Each IP address"),
    each_of(API_KEY): _("Each API key"),
}
_COUNTED: Final[Mapping[str, Any]] = {
    CountedBy.USER: _EACH_OF[each_of(USER)],
    CountedBy.IP: _EACH_OF[each_of(ADDRESS)],
    CountedBy.API_KEY: _EACH_OF[each_of(API_KEY)],
    CountedBy.EVERYONE: _("All clients together"),
}


@dataclass(frozen=True, slots=True)
class PolicySubject:
    """What a policy is about: names of an entity, a plan and a resource, and which of its limits are shared.

    `shared` has a flag for each of its limits.
    """

    entity: str | None
    plan: str | None
    resource: str | None
    is_total: bool
    shared: tuple[bool, ...]

    @classmethod
    def of(cls, policy: Policy) -> PolicySubject:
        """The subject of a row."""
        rows = (policy.entity, policy.plan, policy.resource)
        entity, plan, resource = (None if row is None else str(row) for row in rows)
        shared = () if policy.pk is None else tuple([limit.shared for limit in policy.limits.all()])
        return cls(entity, plan, resource, is_total=policy.scope in TOTALS, shared=shared)


def row_in_words(row: Any) -> str:
    """A row as people know it: a policy with whom it is about and when, a resource by its URL, else its name."""
    if isinstance(row, Candidate):
        return policy_in_words(row.policy, {})
    if isinstance(row, Resource):
        return resource_labels([row.name]).get(row.name, row.name)
    if not isinstance(row, Policy):
        return str(row)
    words = policy_in_words(row, {})
    return f"{words} ({row.when(moment)})" if row.valid_from or row.weekly_hours else words


def policy_in_words(policy: Policy, names: Mapping[str, str]) -> str:
    """Whom a policy is about, and on what; with the names of clients, as far as they are known."""
    return policies_in_words([policy], names)[0]


def policies_in_words(policies: Iterable[Policy], names: Mapping[str, str]) -> list[str]:
    """`policy_in_words` of several policies; their limits are best prefetched."""
    rows = [*policies]
    made = [row.resource.name for row in rows if row.resource is not None and row.resource.made_for_rule]
    rules = rules_of_resources(made)
    return [subject_in_words(PolicySubject.of(row), names, rules) for row in rows]


def subject_in_words(subject: PolicySubject, names: Mapping[str, str], rules: Mapping[str, Endpoint]) -> str:
    """Whom a policy for a subject is about, and on what; `rules` as `rules_of_resources` returns them."""
    rule = rules.get(subject.resource or "")
    where = "on_resource" if subject.resource is not None else "total" if subject.is_total else ""
    resource = subject.resource if rule is None else label_of(rule)
    return str(_WHERE[where]) % {"whom": _whom(subject, names, rule), "resource": resource}


def rule_in_words(rule: Endpoint) -> str:
    """Whom a URL rule with limits is about, and on which URLs."""
    whom = _COUNTED.get(rule.counted_by, _("Each client"))
    return str(_WHERE["on_resource"]) % {"whom": whom, "resource": label_of(rule)}


def _whom(subject: PolicySubject, names: Mapping[str, str], rule: Endpoint | None) -> str:
    is_each = {*subject.shared} == {False}
    if subject.entity is not None:
        is_each_of = is_each and subject.entity in _EACH_OF
        return str(_EACH_OF[subject.entity]) if is_each_of else with_name(subject.entity, names)
    if subject.plan is not None:
        text = gettext("Each member of “%(plan)s”") if is_each else gettext("Plan “%(plan)s”")
        return text % {"plan": subject.plan}
    if is_each and rule is not None and rule.counted_by in _COUNTED:
        return str(_COUNTED[rule.counted_by])
    if {*subject.shared} == {True}:
        return gettext("All clients together")
    return gettext("Each client") if is_each else gettext("Everyone")
