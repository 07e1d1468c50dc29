"""The resolver: which limits hold for an entity on a resource, compiled and kept until something changes.

The way of an answer: the models find candidates, `chosen` says which of them hold, `compiled` makes a limit set of
them, with what the members of a pool `supply` where one serves the resource, and the `cache` keeps it.
"""

from __future__ import annotations

from limits_app.resolver.cache import Key, PoolResolver, Resolver, ResolverInfo, pool_resolver, resolver
from limits_app.resolver.chosen import CALL, Choice, Held, Standing, Verdict
from limits_app.resolver.compiled import Resolution
from limits_app.resolver.joined import joined_supply
from limits_app.resolver.pooled import MemberSet, PooledSet
from limits_app.resolver.present import Place, Present
from limits_app.resolver.resolved import ResolvedSet
from limits_app.resolver.resolving import Limits, check_names, home, resolve
from limits_app.resolver.source import source
from limits_app.resolver.supply import MEMBER_LEVEL, Supply
from limits_app.resolver.surveying import Pair, choices, scopes
from limits_app.resolver.versions import advance_version

__all__ = [
    "CALL",
    "MEMBER_LEVEL",
    "Choice",
    "Held",
    "Key",
    "Limits",
    "MemberSet",
    "Pair",
    "Place",
    "PoolResolver",
    "PooledSet",
    "Present",
    "Resolution",
    "ResolvedSet",
    "Resolver",
    "ResolverInfo",
    "Standing",
    "Supply",
    "Verdict",
    "advance_version",
    "check_names",
    "choices",
    "home",
    "joined_supply",
    "pool_resolver",
    "resolve",
    "resolver",
    "scopes",
    "source",
]
