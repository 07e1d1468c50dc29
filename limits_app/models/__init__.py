"""Tables: what administrators set, the log of who set it, and the state of the database store."""

from __future__ import annotations

from typing import Final

from limits_app.models.audit_event import AuditEvent, Verb
from limits_app.models.audit_head import AuditHead
from limits_app.models.base import Configuration
from limits_app.models.candidates import OWN, Candidate, Link, chain
from limits_app.models.endpoint import Endpoint
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.limit import Limit
from limits_app.models.limit_rules import LimitKind
from limits_app.models.manifest import Manifest
from limits_app.models.policy import Policy, PolicyScope
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.pool import LoadBalancing, Pool, PoolMember
from limits_app.models.pool_definition import MemberDefinition, PoolDefinition, pool_definition
from limits_app.models.resource import Resource
from limits_app.models.state import LastCommit, LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch
from limits_app.models.usage import Bucket, CollectedBatch, Denial, Period, UsageSnapshot

__all__ = [
    "CONFIGURATION",
    "MAX_LEVELS",
    "OWN",
    "AuditEvent",
    "AuditHead",
    "Bucket",
    "Candidate",
    "CollectedBatch",
    "Configuration",
    "Denial",
    "Endpoint",
    "Enforcement",
    "Entity",
    "LastCommit",
    "LayoutDefinition",
    "Limit",
    "LimitKind",
    "Link",
    "LoadBalancing",
    "Manifest",
    "MemberDefinition",
    "Period",
    "Policy",
    "PolicyEffect",
    "PolicyScope",
    "Pool",
    "PoolDefinition",
    "PoolMember",
    "Resource",
    "ScopeCount",
    "ScopeState",
    "StoreVersion",
    "UsageSnapshot",
    "Verb",
    "WaitingBatch",
    "chain",
    "pool_definition",
]

CONFIGURATION: Final[tuple[type[Configuration], ...]] = (Resource, Entity, Policy, Pool, PoolMember, Limit, Endpoint)
"""The models whose changes are announced."""
