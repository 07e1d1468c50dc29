"""What members of a pool have in use, for the page of the pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limits_app import LimitPool, limits
from limits_app.engine.outcome import Stats
from limits_app.models import PoolMember
from limits_app.policies import PooledSet
from limits_app.services.pools import member_use
from tests.replacing import at_next_call
from tests.services.pool_rows import CALLS, NAME, make_pool

pytestmark = pytest.mark.django_db(transaction=True)

Read = Callable[[PooledSet], dict[str, dict[str, Stats]]]


def test_use_of_members_is_read_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]})

    def change_first(read: Read, pool: PooledSet) -> object:
        PoolMember.objects.get(name="b").delete()
        return read(pool)

    at_next_call(monkeypatch, PooledSet, "member_stats", change_first)
    assert [*member_use(NAME)] == ["a"]


def test_statistics_of_a_pool_are_read_again_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pool({"a": [CALLS], "b": [CALLS]})

    def change_first(read: Callable[[LimitPool], object], pool: LimitPool) -> object:
        PoolMember.objects.get(name="b").delete()
        return read(pool)

    at_next_call(monkeypatch, LimitPool, "get_stats", change_first)
    assert limits.pool(NAME).get_stats()["num_limit_sets"] == 1
