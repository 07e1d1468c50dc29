"""Policies: the effective limits of an entity on a resource, compiled and cached until something changes.

`query` reads the rows, `chain` says what they mean, `choose` judges them, `resolved_set` compiles them together with
the members of a pool where one serves the resource, `kept_configuration` keeps the result, and `client_resolver` looks
it up.
"""

from limits_app.policies.access_by_identities import AccessTable, IdentityAndPlan, verdict_of, verdict_on
from limits_app.policies.access_by_policies import LIMITED, Access, AccessReason, AccessVerdict
from limits_app.policies.announcing import advance_version
from limits_app.policies.balancing import balancers
from limits_app.policies.chain import PolicyChain, Subject
from limits_app.policies.client_resolver import resolver
from limits_app.policies.collector import EntityRow
from limits_app.policies.combined import bounded
from limits_app.policies.dropped import LostLimit, applied_without, dropped_by_each, dropped_keys, lost_by_new
from limits_app.policies.exempting import is_exempting, standings
from limits_app.policies.joined import joined_set
from limits_app.policies.kept_configuration import ResolutionKey, configuration
from limits_app.policies.policy_values import ENTITY_FLAGS, PolicyValue
from limits_app.policies.pools import MEMBER_LEVEL, MemberSet, PooledSet, with_secrets
from limits_app.policies.pools_by_name import pool_resolver
from limits_app.policies.precedence import (
    CODE,
    EffectiveLimit,
    PolicyChoice,
    PolicyStatus,
    Verdict,
    group_of,
)
from limits_app.policies.prices import PriceLists, price_lists, prices_to_come, stored_prices
from limits_app.policies.proposed import ProposedLimits, ProposedPolicy, ProposedRows, dropped_by_proposed
from limits_app.policies.reading import read_in_background
from limits_app.policies.resolution import (
    DefaultLimits,
    Pair,
    chain_in_code,
    check_names,
    checked_defaults,
    choose_each,
    emergency_of,
    latest_code_limits,
    latest_code_limits_of_each,
    policy_source,
    resolve,
    resolve_each,
    resource_scopes,
    switch_in_force,
    total_scopes,
)
from limits_app.policies.resolved_set import Resolution, ResolvedSet
from limits_app.policies.stored import members_of_plans
from limits_app.policies.stores import StoreVersions, VersionedStore

__all__ = [
    "CODE",
    "ENTITY_FLAGS",
    "LIMITED",
    "MEMBER_LEVEL",
    "Access",
    "AccessReason",
    "AccessTable",
    "AccessVerdict",
    "DefaultLimits",
    "EffectiveLimit",
    "EntityRow",
    "IdentityAndPlan",
    "LostLimit",
    "MemberSet",
    "Pair",
    "PolicyChain",
    "PolicyChoice",
    "PolicyStatus",
    "PolicyValue",
    "PooledSet",
    "PriceLists",
    "ProposedLimits",
    "ProposedPolicy",
    "ProposedRows",
    "Resolution",
    "ResolutionKey",
    "ResolvedSet",
    "StoreVersions",
    "Subject",
    "Verdict",
    "VersionedStore",
    "advance_version",
    "applied_without",
    "balancers",
    "bounded",
    "chain_in_code",
    "check_names",
    "checked_defaults",
    "choose_each",
    "configuration",
    "dropped_by_each",
    "dropped_by_proposed",
    "dropped_keys",
    "emergency_of",
    "group_of",
    "is_exempting",
    "joined_set",
    "latest_code_limits",
    "latest_code_limits_of_each",
    "lost_by_new",
    "members_of_plans",
    "policy_source",
    "pool_resolver",
    "price_lists",
    "prices_to_come",
    "read_in_background",
    "resolve",
    "resolve_each",
    "resolver",
    "resource_scopes",
    "standings",
    "stored_prices",
    "switch_in_force",
    "total_scopes",
    "verdict_of",
    "verdict_on",
    "with_secrets",
]
