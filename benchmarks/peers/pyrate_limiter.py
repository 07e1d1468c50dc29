"""pyrate-limiter: a log of hits, or GCRA, in memory or in a manager process."""

from __future__ import annotations

from pyrate_limiter import (
    GCRA,
    AbstractBucket,
    Duration,
    InMemoryBucket,
    Limiter,
    MultiprocessStateStore,
    Rate,
    SingleBucketFactory,
    StateBucket,
)

from benchmarks.harness import Contender

__all__ = ["admitted", "between_processes", "refused"]


def admitted() -> list[Contender]:
    """Log and GCRA; the log is emptied between slices, as its own thread does it."""
    rates = [Rate(1_000_000_000, Duration.HOUR)]
    log = InMemoryBucket(rates)
    return [
        _contender("pyrate-limiter, log", log, empty=True),
        _contender("pyrate-limiter, GCRA", StateBucket(rates, algorithm=GCRA())),
    ]


def refused() -> list[Contender]:
    """Log and GCRA."""
    rates = [Rate(1, Duration.DAY)]
    return [
        _contender("pyrate-limiter, log", InMemoryBucket(rates), refused=True),
        _contender("pyrate-limiter, GCRA", StateBucket(rates, algorithm=GCRA()), refused=True),
    ]


def between_processes() -> list[Contender]:
    """GCRA with its state in a manager process."""
    bucket = StateBucket([Rate(1_000_000_000, Duration.HOUR)], algorithm=GCRA(), store=MultiprocessStateStore.init())
    return [_contender("pyrate-limiter, GCRA", bucket)]


def _contender(name: str, bucket: AbstractBucket, *, refused: bool = False, empty: bool = False) -> Contender:
    # No thread that empties buckets every ten seconds while something else is timed.
    limiter = Limiter(SingleBucketFactory(bucket, schedule_leak=False))

    def once() -> object:
        return limiter.try_acquire("user", blocking=False)

    once()
    assert once() is not refused
    return Contender(name, once, bucket.flush, slice_calls=1_000) if empty else Contender(name, once)
