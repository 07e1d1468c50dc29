"""A site whose processes share a roll-up, of which some are killed with a batch; run by `test_shared_roll_up`.

Then it is down for days, for nearly as long as the store keeps a batch, before the next roll-up.
It prints what was counted by whom, and the sum of the snapshots, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from typing import Any, Final

import django
from django.core.management import call_command
from django.db import connections
from django.db.models import F

RESOURCE: Final = "shared"


def main(clients: int) -> None:
    """Count a request of each client, and add the counts with several processes."""
    django.setup()
    call_command("migrate", verbosity=0)
    _count(clients)
    _fall_behind()
    # The first one gets the job, and takes what the others leave; each of the others helps.
    kinds = (_die_before_adding, _die_before_forgetting, _help)
    first = _started(_lease_only)
    helpers = {kind.__name__: _started(kind) for kind in kinds}
    _be_down(timedelta(days=8))
    rolled_up = _started(_roll_up)
    print(json.dumps({"codes": {"lease": first, **helpers, "roll up": rolled_up}, **_sums()}))  # noqa: T201


def _count(clients: int) -> None:
    from limits_app import CallLimit, LimitSet
    from limits_app.engine.keys import scope_of
    from limits_app.engine.record import schema_of
    from limits_app.engine.scoped_limits import ScopedLimits
    from limits_app.stores.registry import resilient_store

    store = resilient_store("default").open()
    schema = schema_of((CallLimit.per_hour(100),), store.lease_us, counts_usage=True)
    for number in range(clients):
        assert LimitSet.composed([ScopedLimits(scope_of(RESOURCE, f"user:{number}"), schema)], store).try_acquire()


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
    main(int(sys.argv[1]))
