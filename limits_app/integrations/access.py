"""Access of a request: blocked, exempt or limited, which the middleware, decorators and throttles find out here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from limits_app import conf
from limits_app.core.errors import LimitExceeded
from limits_app.integrations.exemptions import exemptions_of
from limits_app.integrations.identities import counted_of, names_of
from limits_app.policies import Access, AccessIndex, AccessVerdict
from limits_app.services.access import Identity, blocked, shadowed

if TYPE_CHECKING:
    from limits_app.integrations.charges import Key
    from limits_app.integrations.request import RequestLimits


def is_exempt(limits: RequestLimits, charged: Iterable[Key] = ()) -> bool:
    """Whether a request is charged nothing; `charged` are the resources and entities that it would be charged for.

    Raises LimitExceeded where the request is blocked, and StoreUnavailable where that cannot be known.
    May query the database.
    """
    if not limits.needs_verdict:
        return False
    access = limits.table.access
    if not limits.needs_verdict:  # as is known now
        return False
    places: list[tuple[str | None, str | None]] = [(None, None)]
    for resource, entity in charged:
        places += [(None, entity), *([(resource, entity)] if access.is_blocked_for_some(resource) else [])]
    found = False
    for place in places:
        verdict = verdict_of(limits, *place)
        if verdict.access is Access.BLOCKED and verdict.reason is not None:
            rejected = blocked(verdict.reason, place[0])
            limits.refused = (rejected,)
            raise LimitExceeded.of(rejected)
        found = found or verdict.access is Access.EXEMPT
    return found


async def ais_exempt(limits: RequestLimits, charged: Iterable[Key] = ()) -> bool:
    """`is_exempt` for asyncio."""
    if not limits.needs_verdict:
        return False
    return await sync_to_async(is_exempt)(limits, charged)


def verdict_of(limits: RequestLimits, resource: str | None = None, entity: str | None = None) -> AccessVerdict:
    """The verdict on a request, or on a charge of it; it is made once for a request, until its user changes."""
    if limits.is_admitted:
        return AccessVerdict(Access.EXEMPT)
    limits.forget_former_user()
    verdict = limits.verdicts.get((resource, entity))
    if verdict is None:
        verdict = limits.verdicts[resource, entity] = _judged(limits, resource, entity)
        if verdict.shadowed is not None and entity is None:
            shadowed(verdict.shadowed, resource)
    return verdict


def _judged(limits: RequestLimits, resource: str | None, entity: str | None) -> AccessVerdict:
    table, exemptions = limits.table.access, exemptions_of(limits.settings[conf.EXEMPT.name])
    needs_user = exemptions.needs_user or bool(table.index.plans)
    names = names_of(limits, table.kinds | exemptions.entities.kinds, needs_user=needs_user)
    if entity is not None and entity not in names:
        names.append(entity)
    identities = _with_plans(limits, table.index, names, resource)
    verdict = table.verdict(identities, resource)
    if verdict.access is Access.LIMITED and resource is None and exemptions.apply(limits, names):
        return AccessVerdict(Access.EXEMPT, shadowed=verdict.shadowed)
    return verdict


def _with_plans(
    limits: RequestLimits, index: AccessIndex, names: Sequence[str], resource: str | None
) -> list[Identity]:
    """The identities of a request, each with its plan where that makes a difference.

    What PLAN_OF_REQUEST names is the plan of the counted entity; others have that of the user's groups. No plan lifts
    the block of an address.
    """
    address, *others = names
    identities: list[Identity] = [(address, None)]
    if not index.plans and not any(index.policies_of(name, resource) is not None for name in others):
        return identities + [(name, None) for name in others]
    counted, named = counted_of(limits) if limits.settings[conf.PLAN_OF_REQUEST.name] is not None else (None, None)
    of_groups = limits.plan_of_groups()
    identities += [(name, named if named is not None and name == counted else of_groups) for name in others]
    if named in index.plans and counted is not None and counted not in others:
        identities.append((counted, named))
    return identities
