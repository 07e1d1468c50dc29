"""Models: configuration, the audit log, usage, and the state of the database store."""

from __future__ import annotations

from limits_app.models.alerts import Alert, AlertChannel, AlertKind, AlertRule
from limits_app.models.audit_log import AuditEvent, AuditHead, Manifest, Verb
from limits_app.models.base import Configuration
from limits_app.models.candidate import Candidate, CandidateState, CandidateValue
from limits_app.models.emergency import ENFORCED, Emergency, EmergencySwitch, emergency
from limits_app.models.endpoint import WITHOUT_CONDITIONS, CountedBy, Endpoint
from limits_app.models.entity import MAX_LEVELS, Entity
from limits_app.models.jobs import (
    BackgroundJob,
    forgotten_jobs,
    helper_name,
    job_row,
    jobs_named,
    leased_helpers,
    note_scheduled,
    recent_helpers,
)
from limits_app.models.limit import Limit, noted_limits
from limits_app.models.menu import (
    ActivityEntry,
    AlertsEntry,
    ClientsEntry,
    LimitsEntry,
    Overview,
    SettingsEntry,
)
from limits_app.models.namespaces import write_alias
from limits_app.models.plan import Plan, PlanGroup
from limits_app.models.policy import TOTALS, Policy, PolicyScope, in_scope
from limits_app.models.policy_rules import Counted, Enforcement, PolicyEffect
from limits_app.models.pool import CoolDown, LoadBalancing, Pool, PoolMember
from limits_app.models.price import Per, Price
from limits_app.models.registry import CONFIGURATION, REGISTRY, Registered, registered
from limits_app.models.resource import CodeLimits, Resource, code_limits, note_code_limits
from limits_app.models.state import LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch
from limits_app.models.usage import (
    BucketKind,
    CollectedBatch,
    Denial,
    EvaluatedEntity,
    EvaluationCount,
    EvaluationKind,
    UsagePeriod,
    UsageSnapshot,
)
