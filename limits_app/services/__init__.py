"""The API of the app: one verb for each use.

from limits_app import limits

with limits.acquire("openai/gpt-4", entity="user:42", requested={"tpm": 500}) as acquisition:
    ...
    acquisition.update({"tpm": 312})
"""

from __future__ import annotations

from limits_app.policies import PolicyStatus
from limits_app.services.acquire import aacquire, acheck, acquire, atry_acquire, check, limit_set, try_acquire
from limits_app.services.adjust import areset, reset, top_up
from limits_app.services.boosts import grant_boost
from limits_app.services.candidates import (
    CandidateReport,
    candidates,
    discard_candidate,
    promote_candidate,
    revert_candidate,
    revert_candidates,
    set_candidate,
)
from limits_app.services.emergency import emergency, set_emergency
from limits_app.services.erasure import Erased, erase
from limits_app.services.explain import Explanation, aexplain, explain
from limits_app.services.factor_boosts import (
    PlannedBoost,
    boost,
    boost_each,
    boost_policies,
    boost_to,
    planned_boosts,
)
from limits_app.services.listing import (
    get_entity_limits,
    get_plan_limits,
    get_resource_limits,
    get_system_limits,
    list_entities,
    list_plans,
    list_resources,
    list_resources_with_entities,
)
from limits_app.services.pools import NamedPool, areport_upstream, pool, report_upstream
from limits_app.services.rejections import Rejection, rejections
from limits_app.services.retention import prune_usage
from limits_app.services.several import Share, atry_acquire_all, try_acquire_all
from limits_app.services.shadow import shadow_refusals
from limits_app.services.status import (
    LimitState,
    RowState,
    Status,
    StoreHealth,
    astatus,
    overview,
    status,
    store_health,
)
from limits_app.services.usage import RolledUp, denials, roll_up, spend, usage
from limits_app.services.writing import (
    delete_entity_limits,
    delete_plan_limits,
    delete_resource_limits,
    delete_system_limits,
    end_boost,
    set_entity,
    set_entity_limits,
    set_plan_limits,
    set_resource_limits,
    set_system_limits,
)
from limits_app.usage.reading import DenialCount

__all__ = [
    "CandidateReport",
    "DenialCount",
    "Erased",
    "Explanation",
    "LimitState",
    "NamedPool",
    "PlannedBoost",
    "PolicyStatus",
    "Rejection",
    "RolledUp",
    "RowState",
    "Share",
    "Status",
    "StoreHealth",
    "aacquire",
    "acheck",
    "acquire",
    "aexplain",
    "areport_upstream",
    "areset",
    "astatus",
    "atry_acquire",
    "atry_acquire_all",
    "boost",
    "boost_each",
    "boost_policies",
    "boost_to",
    "candidates",
    "check",
    "delete_entity_limits",
    "delete_plan_limits",
    "delete_resource_limits",
    "delete_system_limits",
    "denials",
    "discard_candidate",
    "emergency",
    "end_boost",
    "erase",
    "explain",
    "get_entity_limits",
    "get_plan_limits",
    "get_resource_limits",
    "get_system_limits",
    "grant_boost",
    "limit_set",
    "list_entities",
    "list_plans",
    "list_resources",
    "list_resources_with_entities",
    "overview",
    "planned_boosts",
    "pool",
    "promote_candidate",
    "prune_usage",
    "rejections",
    "report_upstream",
    "reset",
    "revert_candidate",
    "revert_candidates",
    "roll_up",
    "set_candidate",
    "set_emergency",
    "set_entity",
    "set_entity_limits",
    "set_plan_limits",
    "set_resource_limits",
    "set_system_limits",
    "shadow_refusals",
    "spend",
    "status",
    "store_health",
    "top_up",
    "try_acquire",
    "try_acquire_all",
    "usage",
]
