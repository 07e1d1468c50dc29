"""Prunes into an archive on a full disk, or is killed in the middle of it, and prunes again: run by `test_archiving`.

`python -m tests.usage.archived FOLDER full|torn|killed` prints as JSON what is left in the table and what can be read.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any, Final

import django
from django.core.management import call_command
from django.db import connections

ROWS: Final = 3_500
OLD: Final = datetime(2020, 1, 1, tzinfo=UTC)
ONE_AND_A_HALF_BATCHES: Final = 150_000
"""As bytes; of names that were drawn by lot, a row keeps a hundred bytes however it is compressed."""


def main(folder: Path, how: str) -> None:
    """Prune, with what goes wrong, and once more."""
    django.setup()
    call_command("migrate", verbosity=0)
    ids = _filled()
    ended = _on_a_full_disk(folder) if how == "full" else _killed(folder, torn=how == "torn")
    early = {"ended": ended, "left": len(_left()), "lost": len(ids - _left() - _read(folder))}
    _prune(folder)
    late = {"left": len(_left()), "lost": len(ids - _read(folder)), "files": len([*folder.iterdir()])}
    print(json.dumps([early, late]))  # noqa: T201 - for the test


def _filled() -> set[int]:
    from limits_app.models import UsagePeriod, UsageSnapshot

    UsageSnapshot.objects.bulk_create(
        UsageSnapshot(
            period=UsagePeriod.HOUR,
            start=OLD + timedelta(hours=hour),
            resource=os.urandom(30).hex(),
            entity=os.urandom(60).hex(),
            key="calls",
        )
        for hour in range(ROWS)
    )
    return _left()


def _left() -> set[int]:
    from limits_app.models import UsageSnapshot

    return set(UsageSnapshot.objects.values_list("pk", flat=True))


def _prune(folder: Path) -> None:
    from limits_app.usage.pruning import prune

    prune(archive=folder)


def _on_a_full_disk(folder: Path) -> str:
    """No file can grow beyond a size, which the system says as it says that a disk is full."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ONE_AND_A_HALF_BATCHES, unlimited[1]))
    try:
        _prune(folder)
    except OSError as error:
        return error.strerror or ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    return ""


def _killed(folder: Path, *, torn: bool) -> str:
    """Killed by the system in the middle of the first write, or as soon as a file is seen."""
    connections.close_all()
    process: Any = get_context("fork").Process(target=_prune_until_killed, args=(folder, torn))
    process.start()
    until = monotonic() + 60
    while not torn and process.is_alive() and not (folder.exists() and any(map(_size, folder.iterdir()))):
        assert monotonic() < until, "nothing was written"
    if not torn:
        process.kill()
    process.join()
    return signal.Signals(-process.exitcode).name


def _size(file: Path) -> int:
    return file.stat().st_size


def _prune_until_killed(folder: Path, torn: bool) -> None:
    if torn:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (ONE_AND_A_HALF_BATCHES // 3, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _prune(folder)


def _read(folder: Path) -> set[int]:
    """Give the rows that are in the archive, of each file as far as it can be read."""
    found: set[int] = set()
    for file in folder.iterdir() if folder.exists() else ():
        with gzip.open(file, "rt") as lines, suppress(EOFError):  # a torn end
            for line in lines:
                found.add(json.loads(line)["id"])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
