"""Acquired amounts and their release: limit sets, pools, acquisitions, leases and waiting; without Django.

This is what other packages use of it.
"""

from __future__ import annotations

from limits_app.acquiring.acquisition import Acquisition, rejected_acquisition
from limits_app.acquiring.backoff import RetryAlgorithm, delay, jittered
from limits_app.acquiring.balancing import Balancer, Cooling, balancer_named
from limits_app.acquiring.blocking import Timeout, checked_timeout
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.breaker import BreakerPolicy, BreakerState, CircuitBreaker, Entry
from limits_app.acquiring.credit import credit_scopes, credited_parts
from limits_app.acquiring.leases import Renewer
from limits_app.acquiring.limit_set import LimitSet, Unlimited
from limits_app.acquiring.modes import Mode
from limits_app.acquiring.observers import CALL_OBSERVERS, CallObserver
from limits_app.acquiring.pool import Foreseen, LimitPool, checked_seconds
from limits_app.acquiring.retry import Retrier, RetryOn, RetryPolicy
from limits_app.acquiring.runtime import (
    AtFork,
    WeakRegistry,
    around_fork,
    at_end,
    lock_over_forks,
    on_fork,
    start_thread,
)
from limits_app.acquiring.store import MOST_COLLECTORS, CountingStore, RemoteStore, Store, is_counting, is_remote
from limits_app.acquiring.survey import survey_scopes
from limits_app.acquiring.timed_block import TimedBlock
from limits_app.acquiring.waiting import WaitingLine
