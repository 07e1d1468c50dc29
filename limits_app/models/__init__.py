"""Tables: what administrators set, the log of who set it, and the state of the database store."""

from __future__ import annotations

from typing import Final

from limits_app.models.audit_event import AuditEvent, Verb
from limits_app.models.base import Configuration
from limits_app.models.candidates import OWN, Candidate, Link, chain
from limits_app.models.endpoint import Endpoint
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.limit import Limit
from limits_app.models.limit_rules import LimitKind
from limits_app.models.policy import Policy, PolicyScope
from limits_app.models.policy_rules import Enforcement, PolicyEffect
from limits_app.models.resource import Resource
from limits_app.models.state import LayoutDefinition, ScopeState, StoreVersion

__all__ = [
    "CONFIGURATION",
    "MAX_LEVELS",
    "OWN",
    "AuditEvent",
    "Candidate",
    "Configuration",
    "Endpoint",
    "Enforcement",
    "Entity",
    "LayoutDefinition",
    "Limit",
    "LimitKind",
    "Link",
    "Policy",
    "PolicyEffect",
    "PolicyScope",
    "Resource",
    "ScopeState",
    "StoreVersion",
    "Verb",
    "chain",
]

CONFIGURATION: Final[tuple[type[Configuration], ...]] = (Resource, Entity, Policy, Limit, Endpoint)
"""The models whose changes are announced."""
