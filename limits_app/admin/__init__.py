"""The pages of the Django admin."""

from __future__ import annotations

from django.contrib import admin

from limits_app.admin.alerts import AlertAdmin, AlertRuleAdmin
from limits_app.admin.audit_log import AuditEventAdmin
from limits_app.admin.blocking import LimitsUserAdminMixin
from limits_app.admin.candidates import CandidateAdmin
from limits_app.admin.emergency import EmergencyAdmin
from limits_app.admin.pages import ExplainAdmin, LiveAdmin, OverviewAdmin, RejectionsAdmin, UsageAdmin
from limits_app.admin.policies import PolicyAdmin
from limits_app.admin.pools import PoolAdmin, PoolMemberAdmin
from limits_app.admin.resources import EndpointAdmin, EntityAdmin, PlanAdmin, ResourceAdmin
from limits_app.models import (
    Alert,
    AlertRule,
    AuditEvent,
    Candidate,
    Denial,
    EmergencySwitch,
    Endpoint,
    Entity,
    Explain,
    Live,
    Overview,
    Plan,
    Policy,
    Pool,
    PoolMember,
    Resource,
    UsageSnapshot,
)

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

admin.site.register(Policy, PolicyAdmin)
admin.site.register(Candidate, CandidateAdmin)
admin.site.register(Pool, PoolAdmin)
admin.site.register(PoolMember, PoolMemberAdmin)
admin.site.register(Resource, ResourceAdmin)
admin.site.register(Entity, EntityAdmin)
admin.site.register(Plan, PlanAdmin)
admin.site.register(Endpoint, EndpointAdmin)
admin.site.register(EmergencySwitch, EmergencyAdmin)
admin.site.register(AuditEvent, AuditEventAdmin)
admin.site.register(UsageSnapshot, UsageAdmin)
admin.site.register(AlertRule, AlertRuleAdmin)
admin.site.register(Alert, AlertAdmin)
admin.site.register(Denial, RejectionsAdmin)
admin.site.register(Overview, OverviewAdmin)
admin.site.register(Live, LiveAdmin)
admin.site.register(Explain, ExplainAdmin)
