"""Tables: what administrators set, and the log of who set it."""

from __future__ import annotations

from typing import Final

from limits_app.models.audit_event import AuditEvent, Verb
from limits_app.models.base import Configuration
from limits_app.models.candidates import OWN, Candidate, candidates
from limits_app.models.endpoint import Endpoint
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.limit import Limit
from limits_app.models.limit_rules import LimitKind
from limits_app.models.policy import Policy, PolicyEffect, PolicyScope
from limits_app.models.resource import Resource

__all__ = [
    "CONFIGURATION",
    "MAX_LEVELS",
    "OWN",
    "AuditEvent",
    "Candidate",
    "Configuration",
    "Endpoint",
    "Entity",
    "Limit",
    "LimitKind",
    "Policy",
    "PolicyEffect",
    "PolicyScope",
    "Resource",
    "Verb",
    "candidates",
]

CONFIGURATION: Final[tuple[type[Configuration], ...]] = (Resource, Entity, Policy, Limit, Endpoint)
"""The models whose changes are announced."""
