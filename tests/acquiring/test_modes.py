"""Modes, the stores that they choose, and sets that travel."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.modes import Mode
from limits_app.engine.errors import InvalidRequest, NotShareable
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import Blocked, CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.record import schema_of
from limits_app.engine.runtime import Runtime
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from tests.acquiring.sets import DB, RPM, TPM, ChangeRuntime, limit_set, used


@pytest.mark.parametrize(("mode", "shared"), [("sync", False), ("sync", True), ("thread", True), ("asyncio", True)])
def test_modes_of_one_process_use_memory(mode: str, shared: bool) -> None:
    limits = LimitSet([TPM], mode=mode, shared=shared)
    assert isinstance(limits.store, MemoryStore)
    assert limits.try_acquire({"tpm": 100})
    assert not limits.try_acquire({"tpm": 1})


def test_a_set_is_private_by_default(store: MemoryStore) -> None:
    assert LimitSet([TPM]).store is not LimitSet([TPM]).store
    one, other = limit_set(store, TPM), limit_set(store, TPM)
    one.try_acquire({"tpm": 100})
    assert used(other) == {"tpm": 0}


def test_the_mode_process_uses_the_store_of_the_machine(change_runtime: ChangeRuntime) -> None:
    of_the_machine = MemoryStore()
    change_runtime(open_store={Mode.PROCESS: of_the_machine}.get)
    assert LimitSet([TPM], shared=True, mode="process").store is of_the_machine


@pytest.mark.parametrize("mode", ["celery", "distributed", "ray"])
def test_the_modes_of_several_machines_use_the_store_that_they_share(mode: str, change_runtime: ChangeRuntime) -> None:
    of_all = MemoryStore()
    change_runtime(open_store={mode: of_all}.get)
    assert LimitSet([TPM], shared=True, mode=mode).store is of_all


MODES = "must be one of sync, thread, asyncio, process"
SEVERAL = r"limits must be several, as in LimitSet\(\[limit\]\), not "
NO_CONFIG = r"config must map names to values, as in config=\{'region': 'eu'\}, not "
NO_STORE = r"store must be a store, such as MemoryStore\(\), not "


@pytest.mark.parametrize(
    ("options", "invalid", "message"),
    [
        ("limits", [TPM, DB, None, 5], SEVERAL),
        ("limits", [[None], [5], [{"key": "tpm"}], [[TPM]], [RateLimit]], "is not a limit"),
        ("config", [5, "eu", [], [("region", "eu")], {"eu"}, 0, ""], NO_CONFIG),
        ("store", ["redis", MemoryStore, 5, {"KIND": "redis"}], NO_STORE),
        ("mode", ["", "SYNC", "threads", "gevent", "sync ", None, 1, True, b"sync", [], object()], MODES),
        ("mode", ["thread", "asyncio", "process"], "shares its state: pass shared=True, or mode='sync'"),
    ],
)
def test_invalid_arguments_are_rejected(options: str, invalid: list[Any], message: str) -> None:
    for value in invalid:
        arguments: dict[str, Any] = {"limits": [TPM], options: value}
        with pytest.raises(ValueError, match=message):
            LimitSet(**arguments)


@pytest.mark.parametrize(("shared", "mode"), [(True, "bogus"), (False, "bogus"), (False, "thread")])
def test_a_mode_is_checked_beside_a_store_too(shared: bool, mode: str) -> None:
    with pytest.raises(ValueError, match=mode):
        LimitSet([TPM], store=MemoryStore(), shared=shared, mode=mode)


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"shared": True, "mode": "process"}])
def test_a_store_takes_the_place_of_the_one_that_the_mode_would_choose(options: dict[str, Any]) -> None:
    store = MemoryStore()
    assert LimitSet([TPM], store=store, **options).store is store


def test_a_clock_is_any_callable_that_returns_whole_microseconds() -> None:
    clock = MemoryStore(clock=lambda: 5).clock
    assert clock() == 5
    assert clock.moves_by_itself
    with pytest.raises(InvalidRequest, match=r"clock must return whole microseconds, .* not 1.5"):
        MemoryStore(clock=lambda: 1.5)  # type: ignore[arg-type,return-value]


class Everywhere(MemoryStore):
    """A store that every process finds again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _everywhere, ()


EVERYWHERE = Everywhere()


def _everywhere() -> Everywhere:
    return EVERYWHERE


@pytest.mark.parametrize("mode", ["sync", "thread", "asyncio"])
def test_pickling_a_set_in_memory_is_an_error_that_names_other_stores(mode: str) -> None:
    limits = LimitSet([TPM], shared=True, mode=mode)
    with pytest.raises(NotShareable, match=r"cannot be sent to another process: .*shared=True, mode='process'"):
        pickle.dumps(limits)
    with pytest.raises(TypeError):
        copy.deepcopy(limits)


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_a_set_on_a_store_that_travels_arrives_attached_to_the_same_state(algorithm: RateLimitAlgorithm) -> None:
    calls = CallLimit(5, 86_400, RateLimitAlgorithm.FIXED_WINDOW)
    limits = limit_set(EVERYWHERE, RateLimit("tpm", 100, 86_400, algorithm), calls, DB, config={"region": "eu"})
    limits.try_acquire({"tpm": 30, "db": 0}).release()
    arrived = pickle.loads(pickle.dumps(limits))
    assert arrived is not limits
    assert list(arrived) == list(limits)
    assert arrived.config == {"region": "eu"}
    assert arrived.store is limits.store
    assert used(arrived)["call_count"] == 1
    assert not arrived.try_acquire({"tpm": 71})
    assert arrived.try_acquire({"tpm": 70, "db": 0})
    assert not limits.try_acquire({"tpm": 1})


def test_a_composed_set_arrives_with_its_scopes_and_its_version() -> None:
    scoped = [
        ScopedLimits(scope_of("api", "user:42"), schema_of((TPM, RPM)), "entity"),
        ScopedLimits(scope_of("api", None), schema_of((DB, Blocked())), "resource"),
    ]
    limits = LimitSet.composed(scoped, EVERYWHERE, version=EVERYWHERE.version())
    arrived = pickle.loads(pickle.dumps(limits))
    assert list(arrived.scoped) == list(limits.scoped) == scoped
    assert arrived.version == limits.version
    assert arrived.peek({"tpm": 1}) == limits.peek({"tpm": 1})


def test_an_empty_set_arrives_empty() -> None:
    assert pickle.loads(pickle.dumps(LimitSet(store=EVERYWHERE))).try_acquire()


def test_without_a_surrounding_program_unknown_keys_warn_and_a_store_must_be_known() -> None:
    runtime = Runtime()
    assert runtime.is_enabled()
    assert not runtime.unknown_keys_raise()
    with pytest.raises(LookupError, match="import LimitSet from limits_app, or pass store="):
        runtime.open_store("thread")
