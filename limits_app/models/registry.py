"""The registry of configuration: which models there are, what each of them has, and what is left out where and why.

Limits files, the REST API, imports and exports, the commands and the audit log read it here.
A new model or field is in none of them until it has a line here; a test fails for one that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from django.db.models import Model

from limits_app.models import audit_log, jobs, menu, resource, state, usage
from limits_app.models.alerts import Alert, AlertRule
from limits_app.models.base import Configuration, Definable
from limits_app.models.candidate import Candidate
from limits_app.models.emergency import EmergencySwitch
from limits_app.models.endpoint import Endpoint
from limits_app.models.entity import Entity
from limits_app.models.limit import Limit
from limits_app.models.plan import Plan, PlanGroup
from limits_app.models.policy import Policy
from limits_app.models.pool import CoolDown, Pool, PoolMember
from limits_app.models.price import Price
from limits_app.models.resource import Resource


class ExchangeFormat(StrEnum):
    """What has configuration models and their fields."""

    FILE = "limits file"
    REST = "REST API"
    TABLE = "import and export"
    AUDIT = "audit log"


@dataclass(frozen=True, slots=True)
class Registered:
    """A configuration model.

    `fields` are what a definition of a row can have, in this order, wherever it is written; `unwritten` says of each
    other field why not. `identity` are the fields that identify a row, of a part among the parts of its row.
    `only_new` are fields that the app sets, and that a limits file can set for new rows.
    `section` is its name in limits files and in the paths of the REST API. `parts` is the relation with the rows that
    are written together with it, and `owner` the field by which such a part refers back to it. Where rows are
    `numbered`, several have the same identity. `left_out` says of each use that does not have the model why not.
    """

    model: type[Definable]
    identity: tuple[str, ...]
    fields: tuple[str, ...]
    section: str = ""
    parts: str = ""
    owner: str = ""
    numbered: bool = False
    only_new: tuple[str, ...] = ()
    unwritten: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[ExchangeFormat, str] = field(default_factory=dict)

    @property
    def references(self) -> tuple[str, ...]:
        """The fields in which a definition names other rows."""
        return tuple(name for name in self.fields if self.model._meta.get_field(name).is_relation)

    @property
    def is_audited(self) -> bool:
        """Whether changes are recorded in the audit log and announced."""
        return issubclass(self.model, Configuration)


_PRIMARY_KEY: Final = {"id": "given by the database"}
_TIMES: Final = {"created_at": "set when the row is created", "updated_at": "set when the row is saved"}
_PART: Final = "written with the row that it is a part of"
_PARTS_OF_ROWS: Final = {ExchangeFormat.TABLE: _PART}
_NO_TABLE: Final = {ExchangeFormat.TABLE: "there are few of them: use a limits file"}

REGISTRY: Final[Mapping[type[Model], Registered]] = MappingProxyType(
    {
        registered.model: registered
        for registered in (
            Registered(
                Pool,
                identity=("name",),
                fields=("name", "description", "load_balancing", "failover"),
                section="pools",
                parts="members",
                owner="pool",
                unwritten=_PRIMARY_KEY,
                left_out=_NO_TABLE,
            ),
            Registered(
                PoolMember,
                identity=("name",),
                fields=("name", "weight", "order", "config", "enabled"),
                parts="limits",
                owner="member",
                unwritten={**_PRIMARY_KEY, "pool": _PART},
                left_out=_PARTS_OF_ROWS,
            ),
            Registered(
                Resource,
                identity=("name",),
                fields=("name", "description", "pool", "store", "request_priority"),
                section="resources",
                unwritten={**_PRIMARY_KEY, "made_for_rule": "follows from the URL rules with limits"},
            ),
            Registered(
                Price,
                identity=("resource", "member", "unit", "currency", "valid_from"),
                fields=("resource", "member", "unit", "amount", "per", "currency", "valid_from"),
                section="prices",
                unwritten=_PRIMARY_KEY,
                left_out={ExchangeFormat.TABLE: "`limits prices import` reads lists of prices"},
            ),
            Registered(
                Plan,
                identity=("name",),
                fields=("name", "description", "priority", "request_priority"),
                section="plans",
                unwritten=_PRIMARY_KEY,
                left_out=_NO_TABLE,
            ),
            Registered(
                PlanGroup,
                identity=("group",),
                fields=("group", "plan"),
                section="plan_groups",
                unwritten=_PRIMARY_KEY,
                left_out={**_NO_TABLE, ExchangeFormat.REST: "groups of users are managed in the admin"},
            ),
            Registered(
                Entity,
                identity=("identifier",),
                fields=(
                    "identifier",
                    "name",
                    "parent",
                    "plan",
                    "cascade",
                    "unlimited",
                    "blocked",
                    "billing_from",
                    "metadata",
                ),
                section="entities",
                unwritten=_PRIMARY_KEY,
            ),
            Registered(
                Policy,
                identity=("resource", "entity", "valid_from", "weekly_hours", "plan", "counted"),
                fields=(
                    "resource",
                    "entity",
                    "plan",
                    "counted",
                    "effect",
                    "extends",
                    "enforcement",
                    "rollout_percent",
                    "valid_from",
                    "valid_until",
                    "weekly_hours",
                    "time_zone",
                    "on_unavailable",
                    "slice_seconds",
                    "reason",
                ),
                section="policies",
                parts="limits",
                owner="policy",
                unwritten={**_PRIMARY_KEY, **_TIMES},
            ),
            Registered(
                Limit,
                identity=("key",),
                fields=("key", "text", "shared"),
                unwritten={**_PRIMARY_KEY, "policy": _PART, "member": _PART},
                left_out=_PARTS_OF_ROWS,
            ),
            Registered(
                Endpoint,
                identity=("name", "order"),
                fields=(
                    "name",
                    "description",
                    "path",
                    "view_name",
                    "methods",
                    "counted_by",
                    "header",
                    "combined_with",
                    "responses",
                    "cost",
                    "block_for",
                    "limits",
                    "resource",
                    "amounts",
                    "request_priority",
                    "exempt_staff",
                    "exempt_superusers",
                    "exempt_groups",
                    "exempt_networks",
                    "exempt_entities",
                    "refusal_status",
                    "refusal_body",
                    "order",
                    "stop",
                    "enabled",
                ),
                section="endpoints",
                numbered=True,
                only_new=("limits_resource",),
                unwritten={**_PRIMARY_KEY, "limits_resource": "the resource that is made for the limits"},
            ),
            Registered(
                AlertRule,
                identity=("name",),
                fields=("name", "enabled", "kind", "percent", "rejections", "resource", "entity", "channel", "target"),
                section="alert_rules",
                unwritten={
                    **_PRIMARY_KEY,
                    "created_at": _TIMES["created_at"],
                    "secret": "confidential: a stored secret stays, a new one is set in the admin or the REST API",
                },
                left_out={
                    **_NO_TABLE,
                    ExchangeFormat.AUDIT: "targets and secrets are confidential",
                },
            ),
            Registered(
                Candidate,
                identity=("policy",),
                fields=(),
                unwritten={
                    **_PRIMARY_KEY,
                    **dict.fromkeys(
                        (
                            "policy",
                            "limits",
                            "percent",
                            "revert_percent",
                            "revert_minutes",
                            "reason",
                            "state",
                            "watched_until",
                            "previous_effect",
                            "previous_limits",
                        ),
                        "set by the functions, commands and pages for candidates",
                    ),
                    "created_at": _TIMES["created_at"],
                },
                left_out={
                    ExchangeFormat.FILE: "a test on the usage of one site, with an end",
                    ExchangeFormat.REST: "the list is read only; it is changed in the admin and by commands",
                    **_PARTS_OF_ROWS,
                },
            ),
            Registered(
                EmergencySwitch,
                identity=("id",),
                fields=(),
                unwritten={
                    "id": "there is one row",
                    **dict.fromkeys(("mode", "reason", "until"), "set by the functions, commands and pages for it"),
                    "updated_at": _TIMES["updated_at"],
                },
                left_out={
                    ExchangeFormat.FILE: "an incident of one site",
                    ExchangeFormat.REST: "it has its own path",
                    ExchangeFormat.TABLE: "there is one row",
                },
            ),
        )
    }
)
"""In an order in which none refers to a later one."""

CONFIGURATION: Final[tuple[type[Configuration], ...]] = tuple(
    model for model in REGISTRY if issubclass(model, Configuration)
)
"""The models whose changes are announced and recorded in the audit log."""

NO_CONFIGURATION: Final[Mapping[type[Model], str]] = MappingProxyType(
    {
        Alert: "sent messages",
        audit_log.AuditEvent: "recorded changes",
        audit_log.AuditHead: "recorded changes",
        audit_log.Manifest: "what limits files have made",
        jobs.BackgroundJob: "who does what is due",
        resource.CodeLimits: "what code has passed",
        CoolDown: "what upstreams have asked for",
        menu.ActivityEntry: "an entry of the menu",
        menu.AlertsEntry: "an entry of the menu",
        menu.ClientsEntry: "an entry of the menu",
        menu.LimitsEntry: "an entry of the menu",
        menu.Overview: "an entry of the menu",
        menu.SettingsEntry: "an entry of the menu",
        state.LayoutDefinition: "the state of a store",
        state.ScopeCount: "the state of a store",
        state.ScopeState: "the state of a store",
        state.StoreVersion: "the state of a store",
        state.WaitingBatch: "the state of a store",
        usage.CollectedBatch: "recorded usage",
        usage.Denial: "recorded rejections",
        usage.EvaluatedEntity: "recorded evaluations",
        usage.EvaluationCount: "recorded evaluations",
        usage.UsageSnapshot: "recorded usage",
    }
)
"""The other models, and what each of them has instead of what administrators set."""


def registered(model: type[Model]) -> Registered:
    """Return the entry of a configuration model; raises KeyError for another model."""
    return REGISTRY[model]
