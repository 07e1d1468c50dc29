"""The engine: limits, algorithms and decisions as pure functions, without Django, input or output.

Other packages use this of it, besides `errors`, `limits`, `limit_use`, `locks` and `outcome`, which are public modules.
"""

from __future__ import annotations

from limits_app.engine.algorithms import Rule, State, compile_rule
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.algorithms.units import window_us
from limits_app.engine.algorithms.window_log import EMPTY_LOG, Log
from limits_app.engine.algorithms.windows import SlidingWindow
from limits_app.engine.amounts import (
    EXACT,
    MAX_AMOUNT,
    MICRO,
    MILLI,
    NOTHING,
    Amount,
    GivenAmount,
    OfClass,
    PermitsOnly,
    Requested,
    check_amounts,
    checked_amount,
    class_named,
    currency_like,
    from_micro,
    from_milli,
    given_key,
    is_currency,
    keys_of_nothing,
    shown,
    to_micro,
    to_milli,
    units_of_usage,
    usage_of_units,
)
from limits_app.engine.change_log import (
    ACCESS,
    ALL,
    COOLING,
    EVERYTHING,
    GENERAL,
    MOST_CHANGES,
    MOST_CLIENTS,
    ROWS,
    Change,
    ChangeLog,
    Changes,
    announced,
    least_version,
)
from limits_app.engine.claims import Claim
from limits_app.engine.clock import (
    DEFAULT_ZONE,
    EPOCH,
    LONGEST_ZONE_NAME,
    MICROSECOND,
    Clock,
    Paced,
    as_clock,
    lasts,
    monotonic_us,
    system_us,
    zone_of,
)
from limits_app.engine.compiled import COMPILED, mypyc_attr
from limits_app.engine.costs import cost_of, exact_decimal, given_cost, given_currency
from limits_app.engine.counting import (
    BELOW,
    IDS_LENGTH,
    KEPT_HOURS,
    Batch,
    Count,
    PackedRejection,
    Rejected,
    RejectionCounts,
    Times,
    hour_ends,
    hour_of,
    label_of,
    packed_rejections,
    rejection_label,
    seal,
    unpacked_rejections,
    unsealed,
)
from limits_app.engine.engine import (
    charge,
    close_usage,
    is_nearly_restored,
    is_restored,
    peek,
    reclaim,
    renew,
    settle,
)
from limits_app.engine.holders import HOLDER_LENGTH, extension_holder, is_extension_holder, is_token_holder, leased_us
from limits_app.engine.keys import (
    BLOCK_LEVEL,
    IDEMPOTENCY_LEVEL,
    LEASE_LEVEL,
    MAX_ENTITY_LENGTH,
    RESOURCE_PATTERN,
    UPSTREAM_LEVEL,
    VALUES_LEVEL,
    Account,
    EntityName,
    EntityScopes,
    Scope,
    amounts_scope,
    block_scope,
    check_entity,
    check_idempotency_key,
    check_resource,
    counted_scope,
    digest_in,
    idempotency_scope,
    line_change_scope,
    line_scope,
    member_scope,
    namespace_digest,
    own_keys,
    private_scope,
    scope_of,
    shadow_scope,
    shared_scope,
    shared_total_scope,
    short_key,
    slices_key,
    total_scope,
    unique_name,
    upstream_scope,
    values_scope,
)
from limits_app.engine.limit_checks import check_key, computed_seconds, parse_amount, parse_seconds
from limits_app.engine.limit_kinds import CALL_KEYS, CALLS, counts_money, counts_requests, is_metered
from limits_app.engine.limit_use import LimitUse
from limits_app.engine.namespaces import WHOLE_SITE, Namespace
from limits_app.engine.notation import (
    Noted,
    amount_text,
    check_shared,
    checked_limits,
    limit_body,
    limit_text,
    parse_body,
    parse_limit,
    parse_limits,
    parse_stored,
    seconds_text,
    without_zone,
)
from limits_app.engine.period_starts import AS_THE_CALENDAR, CLIENT_START, PeriodStart
from limits_app.engine.periods import DAY, HOUR, HOUR_MINUTES, HOUR_US, MINUTE, NAMES, SECOND_US, QuotaPeriod
from limits_app.engine.plan import (
    MOST_SHAPES,
    Amounts,
    Bucket,
    PlannedLimit,
    PlanShape,
    ReportedUse,
    RequestPlan,
    parts_of,
)
from limits_app.engine.planning import RequestKeys, Shapes, forget_warnings, nothing_requested, plan_for
from limits_app.engine.prices import (
    KEYS_OF_REQUESTS,
    MEMBER_MARK,
    PRICE_DECIMALS,
    PRICE_DIGITS,
    PRICED_UNITS,
    PricedFor,
    PriceList,
    PricePeriod,
    StoredPrice,
    UnitPrice,
    check_price,
    member_key,
    unit_with_mark,
)
from limits_app.engine.priorities import (
    NORMAL,
    Keep,
    check_keep,
    checked_priority,
    higher_than,
    is_priority_name,
    keep_problems,
    keep_text,
    kept_percent,
    known_priority,
    lower_of,
    of_class,
    of_its_class,
    parse_keep,
    rank_of,
)
from limits_app.engine.readings import UNLIMITED, outcome_of, stats_by_scope, stats_of, units_of
from limits_app.engine.record import (
    LEASE_US,
    NOTHING_KEPT,
    FinishedUsage,
    IsGone,
    KeptUse,
    Lease,
    LeaseId,
    Record,
    Schema,
    lease_us_of,
    new_record,
    schema_of,
)
from limits_app.engine.record_changes import carry_over, merge, reset
from limits_app.engine.runtime import (
    DEFAULT_CURRENCIES,
    DEFAULT_PRIORITIES,
    LeaseHolder,
    Runtime,
    install,
    installed,
    present,
)
from limits_app.engine.scoped_limits import PlannedScope, Prices, ScopedLimits
from limits_app.engine.sealing import decrypted, encrypted
from limits_app.engine.token_leases import LEASE_KEY, LONGEST_LEASE_SECONDS, lease_limits
