"""The pages of the Django admin."""

from __future__ import annotations

from limits_app.admin.alerts import AlertAdmin, AlertRuleAdmin
from limits_app.admin.audit_log import AuditEventAdmin
from limits_app.admin.blocking import LimitsUserAdminMixin
from limits_app.admin.candidates import CandidateAdmin
from limits_app.admin.emergency import EmergencyAdmin
from limits_app.admin.pages import ExplainAdmin, LiveAdmin, OverviewAdmin, RejectionsAdmin, UsageAdmin
from limits_app.admin.policies import PolicyAdmin
from limits_app.admin.pools import PoolAdmin, PoolMemberAdmin
from limits_app.admin.resources import EndpointAdmin, EntityAdmin, PlanAdmin, ResourceAdmin

__all__ = [
    "AlertAdmin",
    "AlertRuleAdmin",
    "AuditEventAdmin",
    "CandidateAdmin",
    "EmergencyAdmin",
    "EndpointAdmin",
    "EntityAdmin",
    "ExplainAdmin",
    "LimitsUserAdminMixin",
    "LiveAdmin",
    "OverviewAdmin",
    "PlanAdmin",
    "PolicyAdmin",
    "PoolAdmin",
    "PoolMemberAdmin",
    "RejectionsAdmin",
    "ResourceAdmin",
    "UsageAdmin",
]
