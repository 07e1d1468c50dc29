"""The resolver: the effective limits of an entity on a resource, compiled and cached until something changes.

The models read the policies, `policies` chooses those that apply, `resolved_set` compiles them together with the
members of a pool where one serves the resource, and `cache` keeps the result.
"""

from __future__ import annotations

from limits_app.resolver.cache import (
    Key,
    PoolResolver,
    Resolver,
    ResolverInfo,
    advance_version,
    pool_resolver,
    resolver,
)
from limits_app.resolver.policies import CODE, Choice, EffectiveLimit, PolicyStatus, Verdict
from limits_app.resolver.pools import MEMBER_LEVEL, MemberSet, PooledSet, PoolMembers
from limits_app.resolver.resolution import (
    Limits,
    Pair,
    check_names,
    choices,
    home,
    latest_code_limits,
    resolve,
    scopes,
    source,
    switch_in_force,
    total_scopes,
)
from limits_app.resolver.resolved_set import Evaluated, Resolution, ResolvedSet
from limits_app.resolver.store_versions import UNAVAILABLE, StoreVersion, StoreVersions

__all__ = [
    "CODE",
    "MEMBER_LEVEL",
    "UNAVAILABLE",
    "Choice",
    "EffectiveLimit",
    "Evaluated",
    "Key",
    "Limits",
    "MemberSet",
    "Pair",
    "PolicyStatus",
    "PoolMembers",
    "PoolResolver",
    "PooledSet",
    "Resolution",
    "ResolvedSet",
    "Resolver",
    "ResolverInfo",
    "StoreVersion",
    "StoreVersions",
    "Verdict",
    "advance_version",
    "check_names",
    "choices",
    "home",
    "latest_code_limits",
    "pool_resolver",
    "resolve",
    "resolver",
    "scopes",
    "source",
    "switch_in_force",
    "total_scopes",
]
