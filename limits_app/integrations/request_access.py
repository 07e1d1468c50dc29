"""Access of a request: blocked, exempt or limited, which the middleware, decorators and throttles find out here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from limits_app import conf
from limits_app.engine.errors import LimitExceeded
from limits_app.integrations.request_identities import calls_site, counted_of, names_of
from limits_app.services.blocked_requests import blocked, shadowed, without_blocks
from limits_app.services.exempt_requests import exemptions_of
from limits_app.services.integration import LIMITED, Access, AccessTable, AccessVerdict, IdentityAndPlan, prefixes
from limits_app.services.site_views import is_admin_log_in, is_of_admin
from limits_app.services.url_matching import UNREAD

if TYPE_CHECKING:
    from limits_app.integrations.charges import ChargeKey
    from limits_app.integrations.request import RequestLimits

DECIDES_ITSELF: Final = "throttles_block_of_everything"
"""The attribute of views whose throttle decides while the system blocks everything."""
_EMERGENCY_SWITCH: Final = "limits_app_emergencyswitch_changelist"


def is_exempt(limits: RequestLimits, key: ChargeKey | None = None) -> bool:
    """Whether a request is charged nothing; with `key`, whether it is not charged for a resource and an entity.

    Raises LimitExceeded where the request or the entity is blocked, and StoreUnavailable where that cannot be known.
    A page that stays reachable is charged to clients that are blocked as if they were not.
    May query the database.
    """
    verdicts = _verdicts(limits, key)
    for resource, verdict in verdicts:
        _check(limits, verdict, resource)
    return limits.source is not without_blocks and any(verdict.access is Access.EXEMPT for _, verdict in verdicts)


async def ais_exempt(limits: RequestLimits, key: ChargeKey) -> bool:
    """`is_exempt` for asyncio."""
    return not is_known_as_limited(limits, key) and await sync_to_async(is_exempt)(limits, key)


def is_known_as_limited(limits: RequestLimits, key: ChargeKey | None = None) -> bool:
    """Whether a request is neither blocked nor exempt, as far as a task can know; it waits for nothing.

    That is without the database, and without functions and lazy users of the site, which may wait for anything.
    """
    if not limits.table.needs_verdict:
        return True
    if limits.table is UNREAD or _calls_site(limits):
        return False
    try:
        return is_limited(limits, key)
    except SynchronousOnlyOperation:  # there is something to read
        return False


def is_limited(limits: RequestLimits, key: ChargeKey | None = None) -> bool:
    """Whether a request is neither blocked nor exempt; with `key`, also not where it is charged for that.

    Raises nothing where it is blocked. May query the database.
    """
    if not limits.table.needs_verdict:
        return True
    return all(verdict.access is Access.LIMITED for _, verdict in _verdicts(limits, key))


def _verdicts(limits: RequestLimits, key: ChargeKey | None) -> list[tuple[str | None, AccessVerdict]]:
    """The verdicts on a request and a charge of it, with the resource whose blocks decide (None: all).

    A combination of parts of the request is judged by itself, and by its client.
    """
    if not (limits.settings[conf.ENABLED.name] and limits.read_table().needs_verdict):
        return []
    access = limits.table.access
    verdicts: list[tuple[str | None, AccessVerdict]] = [(None, verdict_of(limits))]
    if key is not None:
        resource, entity = key
        clients = [charge.client for charge in limits.by_rules if charge.key == key and charge.client is not None]
        for name in (entity, *clients):
            verdicts.append((None, verdict_of(limits, entity=name)))
            if access.is_blocked_for_some(resource):
                verdicts.append((resource, verdict_of(limits, resource, name)))
    return verdicts


def verdict_of(limits: RequestLimits, resource: str | None = None, entity: str | None = None) -> AccessVerdict:
    """The verdict on a request; it is made once, until the user of the request changes.

    With `entity`, it is that on an entity that is charged, and with `resource` that on the request and this entity by
    the blocks of that resource.
    """
    limits.forget_former_user()
    verdict = limits.verdicts.get((resource, entity))
    if verdict is None:
        verdict = limits.verdicts[resource, entity] = _judged(limits, resource, entity)
        shadowed(verdict.shadowed, resource, limits.blocks_in_shadow)
    return verdict


def _judged(limits: RequestLimits, resource: str | None, entity: str | None) -> AccessVerdict:
    table, exemptions = limits.access, exemptions_of(limits.settings[conf.EXEMPT.name])
    names = _names(limits)
    if resource is None and entity is None and not exemptions and table.is_limited(names):
        return LIMITED
    if resource is None and entity is not None:
        if entity in names:
            return verdict_of(limits)
        names = [entity]  # what is charged besides exempts only that charge
    elif entity is not None and entity not in names:
        names = [*names, entity]
    verdict = table.verdict(_with_plans(limits, table, names, resource), resource)
    if verdict.access is not Access.LIMITED or resource is not None:
        return verdict
    is_of_charge = entity is not None
    exempted = entity in exemptions.entities if is_of_charge else exemptions.apply(limits, names)
    return AccessVerdict(Access.EXEMPT, shadowed=verdict.shadowed) if exempted else verdict


def _kinds(limits: RequestLimits) -> tuple[frozenset[str], bool]:
    """The kinds of identities that make a difference, and whether the user of a request does in any case."""
    table, exemptions = limits.access, exemptions_of(limits.settings[conf.EXEMPT.name])
    kinds = table.kinds | exemptions.entities.kinds if exemptions.entities else table.kinds
    return kinds, exemptions.needs_user or bool(table.index.plans)


def _names(limits: RequestLimits) -> list[str]:
    """The identifiers of a request that make a difference, which are found once for all verdicts on it."""
    names = limits.judged_names
    if names is None:
        kinds, needs_user = _kinds(limits)
        names = limits.judged_names = names_of(limits, kinds, needs_user=needs_user)
    return names


def _calls_site(limits: RequestLimits) -> bool:
    kinds, needs_user = _kinds(limits)
    return calls_site(limits, kinds, needs_user=needs_user)


def _with_plans(
    limits: RequestLimits, table: AccessTable, names: Sequence[str], resource: str | None
) -> list[IdentityAndPlan]:
    """The identities of a request, each with its plan where that makes a difference.

    What PLAN_OF_REQUEST names is the plan of the counted entity; others have that of the user's groups. No plan lifts
    the block of an address.
    """
    index, others = table.index, [name for name in names if not name.startswith(prefixes.ADDRESS)]
    if limits.is_over or not (index.plans or any(index.policies_of(name, resource) is not None for name in others)):
        return [(name, None) for name in names]
    has_named = limits.settings[conf.PLAN_OF_REQUEST.name] is not None
    counted, named = counted_of(limits) if has_named else (None, None)
    of_groups = limits.plan_of_groups()
    identities: list[IdentityAndPlan] = [(name, None) for name in names if name not in others]
    identities += [(name, named if named is not None and name == counted else of_groups) for name in others]
    if named in index.plans and counted is not None and counted not in others:
        identities.append((counted, named))
    return identities


def _check(limits: RequestLimits, verdict: AccessVerdict, resource: str | None = None) -> None:
    """Count a rejection where a verdict blocks, and raise its error; a page may be reachable all the same."""
    if verdict.access is not Access.BLOCKED or verdict.reason is None:
        return
    if verdict.blocks_everything and _decides_itself(limits):
        return
    if resource is None and _stays_reachable(limits, verdict):
        limits.source = without_blocks
        return
    rejected = LimitExceeded.of(blocked(verdict.reason, resource))
    limits.refuse(rejected)
    raise rejected


def _decides_itself(limits: RequestLimits) -> bool:
    """Whether a view of the REST API of the app answers, whose throttle lets administrators lift a block of all."""
    match = None if limits.is_over else limits.request.resolver_match
    return match is not None and getattr(getattr(match.func, "cls", None), DECIDES_ITSELF, False)


def _stays_reachable(limits: RequestLimits, verdict: AccessVerdict) -> bool:
    """Whether a blocked request is allowed, so that health checks work and administrators cannot lock themselves out.

    These are views with `@exempt`, the log-in of the admin and the emergency switch, and all pages of the admin for
    superusers while the system blocks everything.
    """
    match = None if limits.is_over else limits.request.resolver_match
    if match is None:
        return False
    if limits.has_exempt_view or is_admin_log_in(match.func):
        return True
    is_superuser = verdict.blocks_everything and bool(getattr(limits.user, "is_superuser", False))
    return (match.url_name == _EMERGENCY_SWITCH or is_superuser) and is_of_admin(match.func)
