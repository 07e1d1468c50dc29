"""A database that cannot be read for a time: the last limits apply, and are read again soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from pytest_django import Settings

from limits_app import CallLimit, limits
from limits_app.engine import HOUR, SECOND_US
from limits_app.engine.errors import Unresolved
from limits_app.models import Entity, Plan, PlanGroup
from limits_app.models.namespaces import WHOLE_SITE
from limits_app.policies import (
    base_resolver,
    client_resolver,
    configuration,
    kept,
    kept_configuration,
    resolver,
)
from limits_app.policies.identifiers import KnownIdentifiers
from limits_app.policies.reading import IdentifierReader, entities, members_of_groups
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.policies.test_following import CLIENT, capacity, queries, read_all
from tests.replacing import at_next_call
from tests.seconds import Seconds
from tests.services.failing import FailingStore, recover_by

pytestmark = pytest.mark.django_db

TTL_SECONDS = 300


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Seconds:
    """The monotonic clock of what is kept."""
    settings.LIMITS = settings.LIMITS | {"RESOLVER_TTL_SECONDS": TTL_SECONDS}
    clock = Seconds()
    for module in (base_resolver, client_resolver, kept, kept_configuration):
        monkeypatch.setattr(module, "monotonic", clock)
    resolver.clear()
    return clock


@pytest.fixture
def outage() -> Iterator[Callable[[bool], None]]:
    """Begins and ends an outage of the database."""

    def fail(*_: object) -> NoReturn:
        raise OperationalError("the connection is closed")

    with ExitStack() as outages:

        def change(begins: bool) -> None:
            if begins:
                outages.enter_context(connection.execute_wrapper(fail))
            else:
                outages.close()

        yield change


@pytest.mark.parametrize("client", [CLIENT, "user:own"])
def test_last_limits_apply_and_are_read_again_soon_after_an_outage(
    client: str, seconds: Seconds, outage: Callable[[bool], None]
) -> None:
    limits.set_resource_limits("api", [CallLimit(1000, HOUR)])
    limits.set_entity_limits("user:own", [CallLimit(900, HOUR)], resource="api")
    read_all()
    before = capacity(client)
    outage(True)
    seconds.now += TTL_SECONDS + 1
    assert capacity(client) == before
    outage(False)
    seconds.now += 60
    assert resolver.cached(("api", client, (), None)) is None
    assert capacity(client) == before
    seconds.now += TTL_SECONDS - 70
    assert resolver.cached(("api", client, (), None)) is not None


def test_limits_of_an_unavailable_store_do_not_apply_after_it_while_the_database_cannot_be_read(
    seconds: Seconds,
    outage: Callable[[bool], None],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": "block"}
    store = FailingStore(MemoryStore(clock=clock))
    put_store(monkeypatch, store)
    recover_by(clock, monkeypatch)
    limits.set_resource_limits("api", [CallLimit(1000, HOUR)], on_unavailable="allow")
    store.down = True
    while resolver.get(("api", CLIENT, (), None)).available:
        assert limits.try_acquire("api", entity=CLIENT)
        seconds.now += TTL_SECONDS + 1
    assert limits.try_acquire("api", entity=CLIENT).outcome.degraded
    outage(True)
    store.down = False
    clock.advance(HOUR)
    with pytest.raises(Unresolved):
        limits.try_acquire("api", entity=CLIENT)
    outage(False)
    assert not limits.try_acquire("api", entity=CLIENT).outcome.degraded


def test_limits_that_cannot_be_read_together_are_read_alone(outage: Callable[[bool], None]) -> None:
    limits.set_resource_limits("api", [CallLimit(1000, HOUR)])
    outage(True)
    resolver.prefetch([("api", name, (), None) for name in ("user:1", "user:2")])
    outage(False)
    assert [capacity(name) for name in ("user:1", "user:2")] == [1000, 1000]


def test_latest_rows_that_cannot_be_read_at_a_change_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_identifiers: KnownIdentifiers) -> NoReturn:
        raise Unresolved("the connection is closed")

    limits.set_resource_limits("api", [CallLimit(1000, HOUR)])
    read_all()
    capacity()
    with monkeypatch.context() as patched:
        patched.setattr(KnownIdentifiers, "read_latest", fail)
        Entity.objects.bulk_create([Entity(identifier=f"key:{number}", blocked=True) for number in range(100)])
        assert not limits.try_acquire("api", entity="key:7")
    assert not configuration.current().known.is_complete
    read_all()
    assert configuration.current().known.is_complete
    assert [bool(limits.try_acquire("api", entity=name)) for name in ("key:8", "user:2")] == [False, True]


def test_limits_that_are_kept_while_a_finalizer_applies_changes_are_read_again() -> None:
    limits.set_entity_limits("user:own", [CallLimit(900, HOUR)], resource="api")
    read_all()
    assert capacity("user:own") == 900
    assert queries("user:own") == 0
    sync = configuration.current().sync
    assert sync.keep(sync.seen, partial(sync.apply, ()))
    assert queries("user:own") > 0


def test_limits_that_were_read_before_a_change_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [CallLimit(1000, HOUR)])
    limits.set_entity_limits("user:own", [CallLimit(900, HOUR)], resource="api")
    read_all()

    def read_and_change(read: Callable[..., Any], *arguments: Any) -> Any:
        chains = read(*arguments)
        limits.set_entity_limits("user:own", [CallLimit(5, HOUR)], resource="api")
        configuration.current().refresh()
        assert capacity("user:2") == 1000  # applies the change
        return chains

    at_next_call(monkeypatch, client_resolver, "stored_chains", read_and_change)
    with transaction.atomic():
        resolver.get(("api", "user:own", (), None))
    assert capacity("user:own") == 5


@pytest.mark.parametrize("has_groups", [False, True])
def test_clients_with_rows_are_read_in_the_background_after_an_outage(
    has_groups: bool, outage: Callable[[bool], None]
) -> None:
    names = {f"key:{number}" for number in range(5)}
    Entity.objects.bulk_create([Entity(identifier=name) for name in names])
    if has_groups:
        group = Group.objects.create(name="customers")
        PlanGroup.objects.create(group=group, plan=Plan.objects.create(name="pro"))
        users = [get_user_model().objects.create(username=f"user {number}") for number in range(5)]
        group.user_set.set(users)
        names |= {f"user:{user.pk}" for user in users}
    known = KnownIdentifiers(entities, members_of_groups, page_size=2)
    reader = IdentifierReader(lambda: [(WHOLE_SITE, known)])
    outage(True)
    assert reader._step() == SECOND_US
    assert not known.is_complete
    outage(False)
    while reader._step() is not None:
        pass
    assert known.is_complete
    assert {name for name in (*names, "key:5", "user:0") if known.may_have_rows(name)} == names
