"""A site whose processes share a roll-up; run by `test_shared_roll_up`.

`in_turn`, some of them are killed with a batch; then it is down for days, for nearly as long as the store keeps a
batch, before the next roll-up. `together`, they roll up at the same time, and one is killed in a transaction.
It prints what was counted by whom, and the sum of the snapshots, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import django
from django.core.management import call_command
from django.db import connections
from django.db.models import F

RESOURCE: Final = "shared"
_SCOPES_TOGETHER: Final = 50


def main(how: str, clients: int) -> None:
    """Count a request of each client, and add the counts with several processes."""
    django.setup()
    call_command("migrate", verbosity=0)
    _count(clients)
    _fall_behind()
    roll_up = {"in_turn": _in_turn, "together": _together}[how]
    print(json.dumps({**roll_up(), **_sums()}))  # noqa: T201


def _in_turn() -> dict[str, Any]:
    # The first one gets the job, and takes what the others leave; each of the others helps.
    kinds = (_die_before_adding, _die_before_forgetting, _help)
    first = _started(_lease_only)
    helpers = {kind.__name__: _started(kind) for kind in kinds}
    _be_down(timedelta(days=8))
    rolled_up = _started(_roll_up)
    return {"codes": {"lease": first, **helpers, "roll up": rolled_up}}


def _together() -> dict[str, Any]:
    """The first collector and three helpers take a batch each; one helper is killed with the next, and others go on."""
    connections.close_all()
    context: Any = get_context("fork")
    has_batch, is_killed, shares = context.Barrier(4), context.Event(), context.SimpleQueue()
    runs = [partial(_collect, number, has_batch, is_killed, shares) for number in (None, 1, 2)]
    runs.append(partial(_die_with_locked_rows, 3, has_batch))
    processes = [context.Process(target=run) for run in runs]
    for process in processes:
        process.start()
    processes[-1].join()
    is_killed.set()
    for process in processes:
        process.join()
    return {"codes": [process.exitcode for process in processes], "shares": [shares.get() for _ in range(3)]}


def _collect(number: int | None, has_batch: Any, is_killed: Any, shares: Any) -> None:
    """Add what waits, and put how much that was."""
    from limits_app.services.usage import add_counts
    from limits_app.usage import rollup

    add = rollup.add

    def add_and_wait(batch: Any) -> int:
        rollup.add = add
        added = add(batch)
        has_batch.wait()
        is_killed.wait()
        return added

    rollup.add = add_and_wait
    shares.put(add_counts(helper=number).added["default"])


def _die_with_locked_rows(number: int, has_batch: Any) -> None:
    from limits_app.services.usage import add_counts
    from limits_app.stores.database.transaction import Transaction
    from limits_app.usage import rollup

    add = rollup.add

    def add_and_prepare(batch: Any) -> int:
        Transaction.commit = lambda _transaction: _die()
        added = add(batch)
        has_batch.wait()
        return added

    rollup.add = add_and_prepare
    add_counts(helper=number)


def _count(clients: int) -> None:
    from limits_app import CallLimit, LimitSet
    from limits_app.engine.keys import scope_of
    from limits_app.engine.record import schema_of
    from limits_app.engine.scoped_limits import ScopedLimits
    from limits_app.stores.registry import resilient_store

    store = resilient_store("default").open()
    schema = schema_of((CallLimit.per_hour(100),), store.lease_us, counts_usage=True)
    for first in range(0, clients, _SCOPES_TOGETHER):
        numbers = range(first, min(first + _SCOPES_TOGETHER, clients))
        scopes = [scope_of(RESOURCE, f"user:{number}") for number in numbers]
        assert LimitSet.composed([ScopedLimits(scope, schema) for scope in scopes], store).try_acquire()


def _fall_behind() -> None:
    from limits_app.models import BackgroundJob

    BackgroundJob.objects.create(name="roll_up", ran_at=datetime.now(UTC) - timedelta(minutes=10))


def _started(run: Callable[[], object]) -> int | None:
    """Run a function in a process of its own, and return its exit code."""
    connections.close_all()
    process: Any = get_context("fork").Process(target=run)
    process.start()
    process.join()
    return int(process.exitcode)


def _lease_only() -> None:
    """Get the job, and do nothing: as a process that has more to do than it can."""
    from limits_app.services.background import Job, jobs

    jobs.jobs = (Job("roll_up", timedelta(), timedelta(minutes=10), lambda: False),)
    assert jobs.run_due()


def _help() -> None:
    """Help once, with one batch, and stop while the lease of the part is valid."""
    from limits_app.services.background import jobs
    from limits_app.usage import rollup

    add = rollup.add

    def add_and_stop(batch: Any) -> int:
        added = add(batch)
        assert added
        os._exit(0)

    rollup.add = add_and_stop
    jobs.run_due()


def _die_before_adding() -> None:
    from limits_app.services.background import jobs
    from limits_app.usage import rollup

    rollup.add = lambda _batch: _die()
    jobs.run_due()


def _die_before_forgetting() -> None:
    from limits_app.services.background import jobs
    from limits_app.usage import rollup

    add = rollup.add

    def add_and_die(batch: Any) -> None:
        assert add(batch)
        _die()

    rollup.add = add_and_die
    jobs.run_due()


def _die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _be_down(lapse: timedelta) -> None:
    from limits_app.models import BackgroundJob

    BackgroundJob.objects.update(leased_until=F("leased_until") - lapse)


def _roll_up() -> None:
    from limits_app import limits

    limits.roll_up()


def _sums() -> dict[str, Any]:
    from limits_app.models import BackgroundJob, CollectedBatch, UsageSnapshot

    rows = UsageSnapshot.objects.filter(period="hour", resource=RESOURCE)
    return {
        "clients": rows.values("entity").distinct().count(),
        "milli": sum(rows.values_list("admitted_milli", flat=True)),
        "batches": CollectedBatch.objects.count(),
        "leases": sorted(BackgroundJob.objects.exclude(holder="").values_list("name", flat=True)),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
