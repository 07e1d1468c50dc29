"""Blocks for a time that URL rules have begun: how long they last for a client, and ending them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Final

from django.db import router, transaction
from django.utils import timezone

from limits_app.acquiring import LimitSet, TimedBlock
from limits_app.engine import Requested, block_scope, counted_scope, scope_of
from limits_app.models import BucketKind, Denial, Endpoint, write_alias
from limits_app.models.prefixes import COMBINATION
from limits_app.models.rule_fields import seconds_of_block
from limits_app.policies import ResolvedSet, resolver
from limits_app.services.combinations import ending_of, is_combination_of
from limits_app.services.url_matching import endpoints
from limits_app.services.usage import add_counts
from limits_app.stores.registry import resilient_store

_SECONDS_TO_COLLECT: Final = 10.0
"""How long rejections are collected from each store at most, to find the combinations of a client."""


def with_block(
    resolved: ResolvedSet, resource: str, entity: str | None, requested: Requested
) -> tuple[LimitSet, Requested]:
    """Return limits with the block of a URL rule for the resource, and the request for them."""
    limits, scope = resolved.in_store(), scope_of(resource, entity)
    seconds = endpoints.current().block_seconds(resource)
    if not seconds or all(scoped.scope.key != scope.key for scoped in limits.scoped):
        return limits, requested
    block = TimedBlock(limits.store, scope, seconds)
    return resolved.with_scopes([block.scoped]), {**(requested or {}), block.key: 0}


def end_timed_blocks(entity: str) -> None:
    """End the blocks for a time of a client, on all resources, after the present transaction.

    So do those of its combinations of parts of a request that have rejected a request since they began.
    Raises StoreUnavailable while a store is down.
    """
    rules = [rule for rule in _rules_with_blocks() if rule.resource_name]
    combining = {rule.resource_name for rule in rules if rule.combined_with}
    longest = max([seconds_of_block(rule.block_for) for rule in rules], default=0.0)
    for resource in sorted({rule.resource_name for rule in rules}):
        seconds = longest if resource in combining else 0.0
        transaction.on_commit(partial(_end, resource, entity, seconds), using=write_alias())


def resources_with_blocks() -> list[str]:
    """The resources of the URL rules that block clients for a time."""
    return sorted({rule.resource_name for rule in _rules_with_blocks()})


def _rules_with_blocks() -> list[Endpoint]:
    rules = Endpoint.objects.using(write_alias()).exclude(block_for="").select_related("resource")
    return [rule for rule in rules if seconds_of_block(rule.block_for)]


def _end(resource: str, entity: str, seconds: float) -> None:
    """End the blocks of a client on a resource; `seconds` is how long those of its combinations last at most."""
    alias = resolver.latest((resource, entity, (), None)).alias
    names = [entity, *(_rejected_combinations(resource, entity, seconds) if seconds else ())]
    scopes = [scope_of(resource, name) for name in names]
    resilient_store(alias).reset([of(scope).key for scope in scopes for of in (block_scope, counted_scope)])


def _rejected_combinations(resource: str, client: str, seconds: float) -> Collection[str]:
    """The combinations of a client that a limit of the resource has rejected within some seconds."""
    if not transaction.get_connection(write_alias()).in_atomic_block:  # as in tests that run what waits for the commit
        add_counts(seconds=_SECONDS_TO_COLLECT)
    since = timezone.now() - timedelta(seconds=seconds, minutes=1)
    rows = Denial.objects.using(router.db_for_read(Denial)).filter(
        resource=resource, bucket=BucketKind.ENTITY, minute__gte=since
    )
    of_client = rows.filter(entity__startswith=COMBINATION, entity__endswith=ending_of(client))
    names = of_client.order_by().values_list("entity", flat=True).distinct()
    return [name for name in names if is_combination_of(name, client)]
