"""The resolver: which limits hold for an entity on a resource, compiled and kept until something changes.

The way of an answer: the models find candidates, `chosen` says which of them hold, `compiled` makes a limit set of
them, and the `cache` keeps it.
"""

from __future__ import annotations

from limits_app.resolver.cache import Key, Resolver, ResolverInfo, resolver
from limits_app.resolver.chosen import CALL, Choice, Held, Standing, Verdict
from limits_app.resolver.compiled import Resolution, ResolvedSet
from limits_app.resolver.resolving import Limits, resolve
from limits_app.resolver.versions import advance_version

__all__ = [
    "CALL",
    "Choice",
    "Held",
    "Key",
    "Limits",
    "Resolution",
    "ResolvedSet",
    "Resolver",
    "ResolverInfo",
    "Standing",
    "Verdict",
    "advance_version",
    "resolve",
    "resolver",
]
