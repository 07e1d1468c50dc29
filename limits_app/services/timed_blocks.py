"""Blocks for a time that URL rules have begun: how long they last for a client, and ending them."""

from __future__ import annotations

from functools import partial

from django.db import transaction

from limits_app.acquiring import LimitSet, TimedBlock
from limits_app.engine import Requested, block_scope, counted_scope, scope_of
from limits_app.models import Endpoint, write_alias
from limits_app.models.rule_fields import seconds_of_block
from limits_app.policies import ResolvedSet, resolver
from limits_app.services.url_matching import endpoints
from limits_app.stores.registry import resilient_store


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

    Raises StoreUnavailable while a store is down. A combination of parts of a request is another client.
    """
    for resource in resources_with_blocks():
        transaction.on_commit(partial(_end, resource, entity), using=write_alias())


def resources_with_blocks() -> list[str]:
    """The resources of the URL rules that block clients for a time."""
    rules = Endpoint.objects.using(write_alias()).exclude(block_for="").select_related("resource")
    return sorted({rule.resource_name for rule in rules if seconds_of_block(rule.block_for)})


def _end(resource: str, entity: str) -> None:
    scope = scope_of(resource, entity)
    alias = resolver.latest((resource, entity, (), None)).alias
    resilient_store(alias).reset([block_scope(scope).key, counted_scope(scope).key])
