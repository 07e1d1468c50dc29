"""Policies: the effective limits of an entity on a resource, compiled and cached until something changes.

`query` reads the rows, `chain` says what they mean, `choose` judges them, `resolved_set` compiles them together with
the members of a pool where one serves the resource, and `cache` keeps the result.
"""

from limits_app.policies.balancing import balancers
from limits_app.policies.cache import Key, advance_version, pool_resolver, resolver
from limits_app.policies.chain import ENTITY_FLAGS, EntityPolicies, PolicyChain, PolicyValue, Subject
from limits_app.policies.choose import (
    CODE,
    Choice,
    EffectiveLimit,
    PolicyStatus,
    Verdict,
    applied_policies,
    changes_at,
    judge,
    rollout_position,
)
from limits_app.policies.pools import MEMBER_LEVEL, MemberSet, PooledSet, PoolMembers, with_secrets
from limits_app.policies.query import policies_for
from limits_app.policies.resolution import (
    Limits,
    Pair,
    check_names,
    checked_defaults,
    choose_each,
    latest_code_limits,
    policy_source,
    resolve,
    resource_scopes,
    switch_in_force,
    total_scopes,
)
from limits_app.policies.resolved_set import Resolution, ResolvedSet, compiled
from limits_app.policies.stores import StoreVersion, StoreVersions

__all__ = [
    "CODE",
    "ENTITY_FLAGS",
    "MEMBER_LEVEL",
    "Choice",
    "EffectiveLimit",
    "EntityPolicies",
    "Key",
    "Limits",
    "MemberSet",
    "Pair",
    "PolicyChain",
    "PolicyStatus",
    "PolicyValue",
    "PoolMembers",
    "PooledSet",
    "Resolution",
    "ResolvedSet",
    "StoreVersion",
    "StoreVersions",
    "Subject",
    "Verdict",
    "advance_version",
    "applied_policies",
    "balancers",
    "changes_at",
    "check_names",
    "checked_defaults",
    "choose_each",
    "compiled",
    "judge",
    "latest_code_limits",
    "policies_for",
    "policy_source",
    "pool_resolver",
    "resolve",
    "resolver",
    "resource_scopes",
    "rollout_position",
    "switch_in_force",
    "total_scopes",
    "with_secrets",
]
