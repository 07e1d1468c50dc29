"""Local slices: capacity of hot limits that a process charges in a shared store in advance, and spends by itself.

A slice is an admitted claim on the plan of the requests, with larger amounts. It ends after `slice_us` of its plan, or
with the period of a quota or the hour in which usage is counted; the rest is then returned to the store.

No limit admits more than without slices:

- Every amount is charged before it is spent. Near the limit no slices are taken, and the store rejects.
- An amount of a quota is spent in the period in which it was charged, or not at all.
- A bucket refills while a slice is held: what it charged at one time may be spent up to `slice_us` later. Therefore
  `sliced` reduces the burst by what the limit refills in this time. A return leaves out the amount that has refilled
  since the slice was charged, so that it never refunds what others have charged.
- The store records each slice as a lease, in the same step that charges it: a reset leaves that charged until the slice
  is returned or has ended. One that cannot be returned soon after its end is lost until the limit refills.

Windows and leaky buckets do not refund, so that plans with one of them have no slices; nor have plans with permits,
with soft limits, or with limits that keep a share free for requests of higher classes. Nothing here starts a thread,
calls a store or reads the system's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from limits_app.engine import (
    MILLI,
    SECOND_US,
    Amounts,
    Bucket,
    Claim,
    PlanShape,
    RequestPlan,
    Rule,
    State,
    counts_money,
    hour_ends,
    lasts,
    to_milli,
    window_us,
)
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit
from limits_app.engine.locks import RLock
from limits_app.stores.slice_records import RETURN_US, recorded

SHARE: Final = 100
"""A slice is at most one part in so many of the capacity of each limit."""

_FAST: Final = 8
"""A slice that was spent within one part in so many of its time is followed by a larger one.

Others stay small, so that little of them is left when they end: a bucket does not get all of that back.
"""
_RETRY_US: Final = SECOND_US
_GRACE_US: Final = 100_000
_SHORTEST_PAUSE_US: Final = 10_000
_LEAST_SIZE: Final = 2
_MOST_SIZE: Final = 2**20
_NEVER: Final = -(2**62)


def sliced(limits: Sequence[tuple[AnyLimit, int]]) -> tuple[tuple[AnyLimit, ...], int]:
    """Return the limits of a scope as they apply with slices, and for how many microseconds a slice may be held.

    Each limit comes with the `slice_seconds` of its policy; the smallest counts. 0 microseconds: no slices, and the
    limits stay as they are.
    """
    slice_us = min([seconds for _, seconds in limits], default=0) * SECOND_US
    if not slice_us:
        return tuple([limit for limit, _ in limits]), 0
    slices = [_sliced(limit, slice_us) for limit, _ in limits]
    held_us = min([us for _, us in slices], default=0)
    return (tuple([limit for limit, _ in slices]) if held_us else tuple([limit for limit, _ in limits])), held_us


def _sliced(limit: AnyLimit, slice_us: int) -> tuple[AnyLimit, int]:
    """Return one limit with its burst reduced by what refills while a slice is held, by at most one part in `SHARE`."""
    if limit.keep:
        return limit, 0
    if isinstance(limit, QuotaLimit) and not limit.soft:
        return limit, slice_us
    if not isinstance(limit, RateLimit | CallLimit) or limit.soft or not limit.algorithm.refunds or counts_money(limit):
        return limit, 0
    window = window_us(limit)
    capacity_milli = to_milli(limit.capacity, decimals=True)
    refilled = -(-capacity_milli * slice_us // (MILLI * window))
    most = int(limit.ceiling) // SHARE
    if most < _LEAST_SIZE:
        return limit, 0
    reduction = min(refilled, most)
    held_us = min(slice_us, reduction * MILLI * window // capacity_milli)
    return replace(limit, burst=round(limit.ceiling - reduction, 3)), held_us


class Slice:
    """Capacity that this process has charged: `left` are the parts of each limit that are not spent yet.

    `asked_at`, `answered_at` and `ends_at` are by the clock of this process. It is asked for before the store charges
    it, so that it ends early rather than late; and its claims are timed from the answer, so that a reset which has
    forgotten them never seems to be earlier.
    """

    __slots__ = ("answered_at", "asked_at", "claim", "ends_at", "is_closed", "left")

    def __init__(self, claim: Claim, asked_at: int, answered_at: int) -> None:
        self.claim = claim
        self.asked_at = asked_at
        self.answered_at = answered_at
        self.ends_at = asked_at + _life_us(claim)
        self.left = list(claim.amounts[: len(claim.amounts) // 2])  # the others record it
        self.is_closed = False

    def spend(self, claim: Claim, now: int) -> bool:
        """Admit a claim if all its amounts are left, and the time of the slice is not over."""
        return not self.has_ended(now) and self.admit(claim, now)

    def admit(self, claim: Claim, now: int) -> bool:
        """Admit a claim if all its amounts are left; its states are those of the slice when it was charged."""
        if not self.change([-amount for amount in claim.amounts]):
            return False
        claim.admitted, claim.taken_from = True, self
        claim.decided_at = self.claim.decided_at + now - self.answered_at
        claim.states = self.claim.states[: len(claim.amounts)]
        return True

    def change(self, changes: Amounts) -> bool:
        """Change the remaining amount of each limit; False, and nothing is changed, where less than 0 would remain.

        A finalizer or a signal handler may change it meanwhile: then it is computed again.
        """
        while True:
            before = self.left
            left = [rest + change for rest, change in zip(before, changes, strict=True)]
            if min(left, default=0) < 0:
                return False
            if self.left is before:
                self.left = left
                return True

    def has_ended(self, now: int) -> bool:
        """Return whether its time is over; also where the clock was set back since it was asked for."""
        return not lasts(self.asked_at, self.ends_at - self.asked_at, now)

    def returns(self, now: int) -> list[int]:
        """Return the changes that settle the slice: the part of the rest that its limits have not refilled.

        The call to the store may take `_GRACE_US`.
        """
        claim = self.claim
        # Where the clock was set back, any time may have passed.
        passed = now - self.asked_at if now >= self.asked_at else self.ends_at - self.asked_at
        at = claim.decided_at + passed + _GRACE_US
        limits = zip(claim.shape.limits, self.left, strict=False)
        rest = [-_counted(limit.rule, claim.decided_at, left, at) for limit, left in limits]
        return [*rest, *[-units for units in claim.amounts[len(rest) :]]]

    def spent_share(self) -> float:
        """Return which share of it was spent, by the limit of which most was spent."""
        parts = zip(self.left, self.claim.amounts, strict=False)
        return max([1 - rest / amount for rest, amount in parts if amount])


class SliceRequest(NamedTuple):
    """Claims of which the store charges the first that fits: perhaps one for a slice, and the one of the request."""

    claims: tuple[Claim, ...]
    asked_at: int


class _Traffic:
    """The state of one plan: its slice, the plan of that, and the size of the next one in requests.

    `seen` has the states that the store has returned last, their time, and when they were asked for by the clock of
    this process. While one thread takes a slice, since `taking_since`, others charge their requests in the store.
    """

    __slots__ = ("asked_at", "plan", "seen", "size", "slice", "taking_since")

    def __init__(self, plan: RequestPlan) -> None:
        self.plan = recorded(plan)
        self.slice: Slice | None = None
        self.size = 1
        self.asked_at = self.taking_since = _NEVER
        self.seen: tuple[Sequence[State], int, int] | None = None


class Slices:
    """The slices of this process in one store. Thread safe.

    `clock` returns microseconds and never goes back. `processes` returns how many processes share the limits: a slice
    is at most half of what remains, divided by them.
    """

    def __init__(self, clock: Callable[[], int], processes: Callable[[], int]) -> None:
        self._clock = clock
        self._processes = processes
        self.after_fork()

    def after_fork(self) -> None:
        """Start without slices in a child: they are the parent's."""
        self._traffic: dict[tuple[PlanShape, tuple[str, ...]], _Traffic] = {}
        self._ended: list[Slice] = []
        self._spent: deque[Slice] = deque()
        """Slices of which nothing is left, as long as the store records them; only a reset returns them."""
        # Reentrant, because a finalizer may settle while this thread holds the lock.
        self._lock = RLock()

    def take(self, claim: Claim) -> SliceRequest | None:
        """Admit a claim from the slice of its plan and return None, or return what the store has to decide on."""
        shape = claim.shape
        with self._lock:
            now = self._clock()
            traffic = self._traffic_of(claim.plan)
            current = traffic.slice
            if current is not None and _is_older(claim, current.claim):
                return SliceRequest((claim,), now)
            if current is not None and current.spend(claim, now):
                return None
            if lasts(traffic.taking_since, shape.slice_us, now):
                return SliceRequest((claim,), now)
            if current is not None and current.has_ended(now):
                self._close(traffic)
            if _FAST * (now - traffic.asked_at) < shape.slice_us:
                traffic.size = min(2 * traffic.size, _MOST_SIZE)
            traffic.asked_at = now
            size = self._size(traffic, claim, now)
            if size < _LEAST_SIZE:
                return SliceRequest((claim,), now)
            traffic.taking_since = now
            amounts = [amount * size for amount in claim.amounts]
            units = [-(-amounts[limit.position] // limit.rule.parts_per_unit) for limit in shape.limits]
            return SliceRequest((Claim(traffic.plan, [*amounts, *units], claim.version), claim), now)

    def decided(self, request: SliceRequest, charged: Claim | None) -> bool:
        """Note which claim the store has charged (None: none); return whether the request was admitted."""
        claim = request.claims[-1]
        latest = charged or claim
        with self._lock:
            now = self._clock()
            traffic = self._traffic_of(claim.plan)
            traffic.seen = latest.states, latest.decided_at, request.asked_at
            if len(request.claims) > 1:
                traffic.taking_since = _NEVER
            if charged is not None and charged is not claim:
                self._close(traffic)
                taken = Slice(charged, request.asked_at, answered_at=now)
                taken.admit(claim, now)
                traffic.slice = taken
        return charged is not None

    def refund(self, claim: Claim, changes: Amounts) -> bool:
        """Put unused amounts of a claim back into its slice; False where the store has to settle the claim."""
        piece = claim.taken_from
        with self._lock:
            if not isinstance(piece, Slice) or piece.is_closed or claim.released or max(changes) > 0:
                return False
            claim.settled = True  # first, so that nothing is refunded twice
            return piece.change([-change for change in changes])

    def return_ended(self, settle: Callable[[Claim, Amounts], object], *, everything: bool = False) -> int | None:
        """Settle the slices that have ended, or all; return in how many microseconds to call again (None: never).

        What `settle` could not return because the store is unavailable is tried again.
        """
        with self._lock:
            now = self._clock()
            for key, traffic in list(self._traffic.items()):
                if traffic.slice is not None and (everything or traffic.slice.has_ended(now)):
                    self._close(traffic)
                if traffic.slice is None and not lasts(traffic.asked_at, 2 * traffic.plan.shape.slice_us, now):
                    del self._traffic[key]
            ended, self._ended = [*self._ended, *self._take_spent(now, everything=everything)], []
        for piece in ended:
            try:
                if now < piece.ends_at + RETURN_US or not any(piece.left):
                    settle(piece.claim, piece.returns(now))
            except StoreUnavailable:
                self._ended.append(piece)
        with self._lock:
            if self._ended:
                return _RETRY_US
            ends = [
                now + traffic.plan.shape.slice_us if traffic.slice is None else traffic.slice.ends_at
                for traffic in self._traffic.values()
            ]
            return max(min(ends) - now, _SHORTEST_PAUSE_US) if ends else None

    def _take_spent(self, now: int, *, everything: bool) -> list[Slice]:
        """Forget the spent slices that the store records no longer; with `everything`, take and return the others."""
        while self._spent and now >= self._spent[0].ends_at + 2 * RETURN_US:
            self._spent.popleft()
        taken = list(self._spent) if everything else []
        self._spent = deque() if everything else self._spent
        return taken

    def end(self, scopes: Collection[str]) -> None:
        """End the slices of scopes (by key), so that they are returned before the use is reset in the store."""
        with self._lock:
            for traffic in self._traffic.values():
                piece = traffic.slice
                if piece is not None and not set(scopes).isdisjoint(traffic.plan.scope_keys):
                    self._close(traffic)
            spent = [piece for piece in self._spent if not set(scopes).isdisjoint(piece.claim.plan.scope_keys)]
            self._spent = deque([piece for piece in self._spent if piece not in spent])
            self._ended += spent

    def unspent(self) -> dict[Bucket, int]:
        """Return how much is charged and not spent, in parts by bucket."""
        amounts: dict[Bucket, int] = {}
        with self._lock:
            slices = [*self._ended, *[piece.slice for piece in self._traffic.values() if piece.slice is not None]]
        for piece in slices:
            for bucket, left in zip(piece.claim.plan.buckets, piece.left, strict=False):
                amounts[bucket] = amounts.get(bucket, 0) + left
        return amounts

    def _traffic_of(self, plan: RequestPlan) -> _Traffic:
        traffic = self._traffic.get(plan.identity)
        if traffic is None:
            traffic = self._traffic[plan.identity] = _Traffic(plan)
        return traffic

    def _size(self, traffic: _Traffic, claim: Claim, now: int) -> int:
        """Return for how many requests like this one the next slice is; below 2 where none is worth it."""
        if traffic.seen is None or not any(claim.amounts):
            return 1
        states, decided_at, asked_at = traffic.seen
        store_now, size, processes = decided_at + now - asked_at, traffic.size, self._processes()
        for limit in claim.shape.limits:
            amount, rule = claim.amounts[limit.position], limit.rule
            if amount and size >= _LEAST_SIZE:
                remaining = rule.ceiling_parts - rule.used(states[limit.position], store_now)
                most = min(rule.ceiling_parts // SHARE, remaining // (2 * processes))
                size = min(size, most // amount)
        return size

    def _close(self, traffic: _Traffic) -> None:
        """End the slice; where some of it is left, the next one is smaller by this share."""
        piece, traffic.slice = traffic.slice, None
        if piece is None:
            return
        traffic.size = max(int(traffic.size * piece.spent_share()), 1)
        piece.is_closed = True
        (self._ended if any(piece.left) else self._spent).append(piece)


def _is_older(claim: Claim, other: Claim) -> bool:
    """Return whether a claim is of an older version of the configuration than another one."""
    return claim.version is not None and other.version is not None and claim.version < other.version


def _life_us(claim: Claim) -> int:
    """Return how long a slice may be held from the time at which it was charged."""
    shape, now = claim.shape, claim.decided_at
    ends = [now + shape.slice_us]
    if shape.counts_usage:
        ends.append(hour_ends(now))
    for limit, amount, state in claim.decisions():
        if amount and isinstance(limit.rule.limit, QuotaLimit):
            ends.append(limit.rule.restored_at(state))
    return min(ends) - now


def _counted(rule: Rule, taken_at: int, amount: int, now: int) -> int:
    """Return how much of an amount that was charged at `taken_at` a limit without other use still counts."""
    if rule.is_counted:
        return amount
    charged = rule.take(rule.start, taken_at, amount) if amount else None
    return 0 if charged is None else rule.used(charged, now)
