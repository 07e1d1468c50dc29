"""The limit pool: interchangeable limit sets, of which one serves each request."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Self, overload

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Requested, shown
from limits_app.core.balancing import Candidates, checked_weights
from limits_app.core.candidates import Serviceable
from limits_app.core.choosing import Choice, earliest, emptiest_of, nearest, those_that_fit
from limits_app.core.desk import Desk
from limits_app.core.errors import InvalidRequest, LimitTimeout, NeverAdmissible
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit
from limits_app.core.outcome import Outcome
from limits_app.core.stats import Stats
from limits_app.core.steps import Steps, take_all, take_all_in_task
from limits_app.core.turns import seconds_of, wait_in_task, wait_in_thread

__all__ = ["Foreseen", "LimitPool"]

_SECOND: Final = 1_000_000


class Foreseen(NamedTuple):
    """What a pool would do: which sets it would ask, in order, and all that have what is requested."""

    asked: tuple[Acquisition, ...]
    able: tuple[Acquisition, ...]

    @property
    def chosen(self) -> Acquisition | None:
        """The one that would admit; None where all refuse."""
        return next((one for one in self.asked if not one.claim.refusal()[0]), None)

    @property
    def outcome(self) -> Outcome:
        """What would be decided: by the one that would admit, else by the one that would admit first or most."""
        chosen = self.chosen
        if chosen is None:
            chosen = earliest(self.asked) if self.asked else nearest(self.able)
        return chosen.outcome


class LimitPool:
    """Interchangeable limit sets, such as regions, accounts or keys; each request is served by one of them.

    `load_balancing` says which one is asked first: `round_robin` (beginning at `worker_index`), `random`,
    `weighted` (as often as its weight says), `least_loaded` (where the largest share is free) or `failover` (in order).
    When it refuses, the others are asked in the balancer's order before anybody waits, unless `failover` is False.
    `weights` are one for each set, by default 1.

    Thread safe and without state of its own but for whose turn it is and which sets are put aside.
    Sets of one store are chosen and charged in one step; those of several stores are asked one after the other.
    Raises ValueError for no sets, a set that is there twice, and a balancer, weights or a worker index that cannot be.
    """

    def __init__(
        self,
        limit_sets: Iterable[LimitSet],
        load_balancing: str = "round_robin",
        worker_index: int = 0,
        *,
        weights: Sequence[float] | None = None,
        failover: bool = True,
    ) -> None:
        self._sets = _checked_sets(limit_sets)
        if not isinstance(load_balancing, str):
            raise InvalidRequest(f"load_balancing must be the name of a balancer, not {shown(load_balancing)}")
        if len(set(self._sets)) < len(self._sets):
            raise InvalidRequest("a limit set is there twice: those of a pool must differ, and weights= says how often")
        if isinstance(worker_index, bool) or not isinstance(worker_index, int) or worker_index < 0:
            raise InvalidRequest(f"worker_index must be a whole number, 0 or more, not {shown(worker_index)}")
        self.failover = failover
        self._use(Desk(load_balancing, checked_weights(weights, len(self._sets)), worker_index), self._sets)
        self._stores = tuple(dict.fromkeys([one.store for one in self._sets]))
        # Where asking costs a way to another machine, all are asked at once.
        self._remote = any(store.remote for store in self._stores)
        self._first_alone = not self._remote and not self._desk.emptiest_first
        self._able = Serviceable(self._sets).of

    @classmethod
    def at(
        cls, desk: Desk, limit_sets: Iterable[LimitSet], names: Iterable[Hashable], *, failover: bool = True
    ) -> Self:
        """Make a pool that shares its desk with others, where its sets have names; it has the weights of the desk."""
        pool = cls(limit_sets, desk.load_balancing, weights=desk.weights, failover=failover)
        pool._use(desk, names)
        return pool

    def _use(self, desk: Desk, names: Iterable[Hashable]) -> None:
        self._desk = desk
        self._names = dict(zip(self._sets, names, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        desk = self._desk
        make = partial(
            LimitPool, self._sets, desk.load_balancing, desk.worker_index, weights=desk.weights, failover=self.failover
        )
        return make, (), dict(desk.resting)

    def __setstate__(self, resting: Mapping[Hashable, int]) -> None:
        self._desk.resting.update(resting)

    @property
    def load_balancing(self) -> str:
        """The name of the balancer."""
        return self._desk.load_balancing

    @property
    def worker_index(self) -> int:
        """Where the balancer began."""
        return self._desk.worker_index

    @property
    def weights(self) -> tuple[float, ...]:
        """One for each set."""
        return self._desk.weights

    @overload
    def __getitem__(self, which: int) -> LimitSet: ...
    @overload
    def __getitem__(self, which: str) -> AnyLimit: ...
    def __getitem__(self, which: int | str) -> LimitSet | AnyLimit:
        if not isinstance(which, str):
            return self._set_at(which)
        if len(self._sets) > 1:
            raise TypeError(
                f"a pool of {len(self._sets)} sets has no one limit {which!r}: say which set, as in pool[0]"
            )
        return self._sets[0][which]

    def __iter__(self) -> Iterator[LimitSet]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __repr__(self) -> str:
        return f"LimitPool({list(self._sets)!r}, {self.load_balancing!r})"

    def try_acquire(self, requested: Requested = None) -> Acquisition:
        """Acquire from one of the sets now or not at all; its `config` says which one it was.

        When all refuse, the refusal is that of the set that would admit first.
        Raises InvalidRequest (a ValueError) when no set has all rates that are requested,
        and NeverAdmissible (a ValueError) for more than any of them can ever admit.
        """
        return self._try(requested, self._ordered(requested))

    def acquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds for any of the sets (None: as long as it takes; 0: not at all).

        A waiter stands in line for all sets that refused it, and takes the first that admits.
        Raises LimitTimeout (a TimeoutError) when the time is up, LimitExceeded at once where all sets are blocked,
        and what `try_acquire` raises.
        """
        seconds, order, refused = seconds_of(timeout), self._ordered(requested), None
        if seconds == 0 or not self._busy():
            refused = self._try(requested, order)
            if refused or seconds == 0:
                return _in_time(refused)
        choice = take_all(self._waiting(requested, order, refused))
        return _held(wait_in_thread(choice, seconds))

    async def atry_acquire(self, requested: Requested = None) -> Acquisition:
        """`try_acquire` for asyncio."""
        return await self._atry(requested, self._ordered(requested))

    async def aacquire(self, requested: Requested = None, timeout: float | None = None) -> Acquisition:
        """`acquire` for asyncio: waits without blocking the event loop."""
        seconds, order, refused = seconds_of(timeout), self._ordered(requested), None
        if seconds == 0 or not self._busy():
            refused = await self._atry(requested, order)
            if refused or seconds == 0:
                return _in_time(refused)
        choice = await take_all_in_task(self._waiting(requested, order, refused))
        return _held(await wait_in_task(choice, seconds))

    def cool_down(self, index: int, seconds: float) -> None:
        """Put a set aside, as after a failure upstream; it comes back when so many seconds of its store have passed.

        0 brings it back now. When all sets that could ever admit a request are put aside, none is.
        """
        limit_set, rest = self._set_at(index), seconds_of(seconds, "seconds must be a number")
        if rest is None:
            raise InvalidRequest(f"seconds must be a number, 0 or more, not {shown(seconds)}")
        self._desk.put_aside(self._names[limit_set], round(rest * _SECOND), limit_set.store)

    def cooling_seconds(self, index: int) -> float:
        """For how many seconds more a set is put aside; 0 when it is not."""
        limit_set = self._set_at(index)
        return self._desk.rest_us(self._names[limit_set], limit_set.store) / _SECOND

    def peek(self, requested: Requested = None) -> Outcome:
        """What `try_acquire` would decide now; charges nothing, and takes no turn.

        Which set a random choice would fall on nobody knows: without failover it is the first one here.
        """
        foreseen = self.foresee(requested)
        if not foreseen.asked:
            raise NeverAdmissible(foreseen.outcome)
        return foreseen.outcome

    def foresee(self, requested: Requested = None) -> Foreseen:
        """The sets that `try_acquire` would ask now, with their states; charges nothing, and takes no turn.

        Raises InvalidRequest as `try_acquire` does.
        """
        able = self._able(requested)
        present = self._present(able, requested)
        wanted = self._claims(requested, self._desk.preview(present))
        others = self._claims(requested, [index for index in able if index not in present])
        for one in [*wanted, *others]:
            one.limit_set.store.peek(one.claim)
        asked = [one for one in wanted if one.claim.plan.can_fit(one.claim.amounts)]
        if self._desk.emptiest_first:
            asked.sort(key=lambda one: one.claim.load())
        return Foreseen(tuple(asked if self.failover else asked[:1]), (*wanted, *others))

    def get_stats(self) -> dict[str, int | str | list[dict[str, Stats]]]:
        """`num_limit_sets`, `load_balancing`, and the live state of each set in `limit_sets`; changes nothing."""
        return {
            "num_limit_sets": len(self._sets),
            "load_balancing": self.load_balancing,
            "limit_sets": [limit_set.get_stats() for limit_set in self._sets],
        }

    def _try(self, requested: Requested, order: Candidates) -> Acquisition:
        if not self._first_alone:
            return self._choose(requested, order)
        first = None
        try:
            first = self._sets[order[0]].try_acquire(requested)
        except NeverAdmissible:
            if len(order) == 1:
                raise
        else:
            if first.claim.admitted or not self.failover or len(order) == 1:
                return first
        return take_all(self._trying(requested, order if first is None else order[1:], first))

    def _choose(self, requested: Requested, order: Candidates) -> Acquisition:
        """As `_trying` does; where all sets have one store, without its steps, which take as long as the rest."""
        wanted = self._claims(requested, order)
        if len(self._stores) > 1 or not all(one.claim.plan.can_fit(one.claim.amounts) for one in wanted):
            return take_all(self._trying(requested, order))
        choose = self._stores[0].acquire_first
        claims = [one.claim for one in wanted]
        claim = choose(claims, emptiest_first=self._desk.emptiest_first, failover=self.failover)
        admitted = next((one for one in wanted if one.claim is claim), None)
        return earliest([one for one in wanted if one.claim.admitted is False]) if admitted is None else _held(admitted)

    async def _atry(self, requested: Requested, order: Candidates) -> Acquisition:
        if self._remote:
            return await take_all_in_task(self._trying(requested, order))
        return self._try(requested, order)

    def _trying(self, requested: Requested, order: Candidates, first: Acquisition | None = None) -> Steps[Acquisition]:
        """Ask sets in that order, after one that has refused; gives what was admitted, or the earliest refusal."""
        wanted = self._claims(requested, order)
        refused = [] if first is None else [first]
        if first is None or any(one.claim.plan.can_fit(one.claim.amounts) for one in wanted):
            wanted = yield from those_that_fit(wanted)
            choice = Choice(wanted=wanted, emptiest_first=self._desk.emptiest_first, failover=self.failover)
            admitted = yield from choice.asking(wanted)
            if admitted is not None:
                return _held(admitted)
            refused += [one for one in wanted if one.claim.admitted is False]
        return earliest(refused)

    def _waiting(self, requested: Requested, order: Candidates, refused: Acquisition | None) -> Steps[Choice]:
        """What to wait for: any of the sets, those that are put aside too, or the chosen one alone."""
        if not self.failover and refused is not None:
            return Choice(wanted=[refused.limit_set.prepare(requested, checks=False)])
        others = [index for index in self._able(requested) if index not in order] if self.failover else ()
        wanted = yield from those_that_fit(self._claims(requested, [*order, *others]))
        if self.failover:
            return Choice(wanted=wanted, emptiest_first=self._desk.emptiest_first, rest_us=self._rest_us)
        if self._desk.emptiest_first:
            wanted = yield from emptiest_of(wanted)
        return Choice(wanted=wanted[:1])

    def _set_at(self, index: int) -> LimitSet:
        try:
            return self._sets[index]
        except IndexError:
            last = len(self._sets) - 1
            raise IndexError(f"the pool has no set {index}: it has {last + 1}, from 0 to {last}") from None

    def _claims(self, requested: Requested, order: Candidates) -> list[Acquisition]:
        return [self._sets[index].prepare(requested, checks=False) for index in order]

    def _ordered(self, requested: Requested) -> Candidates:
        """The sets that may be asked now, in the balancer's order."""
        able, desk = self._able(requested), self._desk
        return desk.order(self._present(able, requested) if desk.resting else able)

    def _present(self, able: Candidates, requested: Requested) -> Candidates:
        """Those that are not put aside, or all when none of these can ever admit as much."""
        present = [index for index in able if not self.cooling_seconds(index)]
        if len(present) == len(able):
            return able
        fits = any(one.claim.plan.can_fit(one.claim.amounts) for one in self._claims(requested, present))
        return present if fits else able

    def _rest_us(self, acquisition: Acquisition) -> int:
        """For how many microseconds the set of an acquisition is put aside."""
        limit_set = acquisition.limit_set
        return self._desk.rest_us(self._names[limit_set], limit_set.store)

    def _busy(self) -> bool:
        """Whether somebody waits in line already."""
        return any(store.line.busy for store in self._stores)


def _checked_sets(limit_sets: object) -> tuple[LimitSet, ...]:
    """The sets of a pool; InvalidRequest says what is none."""
    if isinstance(limit_sets, LimitSet) or not isinstance(limit_sets, Iterable):
        raise InvalidRequest(f"limit_sets must be several, as in LimitPool([limit_set]), not {shown(limit_sets)}")
    sets = tuple(limit_sets)
    if not sets:
        raise InvalidRequest("a pool needs at least one limit set")
    for one in sets:
        if not isinstance(one, LimitSet):
            raise InvalidRequest(f"limit_sets must be limit sets, not {shown(one)}")
    return sets


def _held(acquisition: Acquisition) -> Acquisition:
    """An admitted acquisition, noted with whoever asked if it holds permits."""
    if acquisition.claim.plan.permits:
        acquisition.track()
    return acquisition


def _in_time(acquisition: Acquisition) -> Acquisition:
    """What was admitted; LimitTimeout when it was not."""
    if not acquisition:
        raise LimitTimeout.of(acquisition)
    return acquisition
