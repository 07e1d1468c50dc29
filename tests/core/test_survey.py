"""Surveys: many scopes, one look."""

from __future__ import annotations

import pytest

from limits_app.core.errors import StaleConfiguration
from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.core.outcome import survey
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock

LIMITS = (RateLimit("tpm", 100, 60), CallLimit(10, 60), ResourceLimit("seats", 3))


def scoped(entity: str) -> ScopedLimits:
    return ScopedLimits(scope_of("api", entity), schema_of(LIMITS))


def test_each_scope_says_what_is_used_of_it() -> None:
    store = MemoryStore(clock=FakeClock())
    ada, bob = scoped("ada"), scoped("bob")
    LimitSet.composed([ada], store).acquire({"tpm": 30})
    found = survey([ada, bob], store, None)
    used = {who.scope.entity: [one["used"] for one in found[who.scope.key].values()] for who in (ada, bob)}
    assert used == {"ada": [30, 1, 1], "bob": [0, 0, 0]}
    assert found[ada.scope.key] == LimitSet.composed([ada], store).get_stats()


def test_nothing_is_asked_about_nothing() -> None:
    assert survey([], MemoryStore(), 1) == {}


def test_an_older_configuration_is_noticed() -> None:
    store = MemoryStore()
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        survey([scoped("ada")], store, 0)
