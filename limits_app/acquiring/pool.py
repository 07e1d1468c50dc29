"""The limit pool: interchangeable limit sets, one of which serves each request."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self, overload

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.balancing import Balancer, Candidates, Cooling, EligibleSets, balancer_named, checked_weights
from limits_app.acquiring.blocking import Timeout, checked_timeout, wait_in_task, wait_in_thread
from limits_app.acquiring.bound_limits import BoundLimits
from limits_app.acquiring.choice import (
    Choice,
    aadmissible,
    admissible,
    asorted_by_load,
    closest_to_admission,
    peek,
    rejected_shortest,
    sorted_by_load,
)
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine import SECOND_US, Requested, of_class, shown
from limits_app.engine.errors import InvalidRequest, LimitTimeout, NeverAdmissible
from limits_app.engine.limits import AnyLimit
from limits_app.engine.outcome import Outcome, Stats


class Foreseen(NamedTuple):
    """A preview: the acquisitions that a pool would try, in order, and those of all eligible sets."""

    tried: tuple[Acquisition, ...]
    eligible: tuple[Acquisition, ...]

    @property
    def chosen(self) -> Acquisition | None:
        """The acquisition that would be admitted; None where all would be refused."""
        return next((acquisition for acquisition in self.tried if not acquisition.refusal()[0]), None)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the chosen acquisition, else of the shortest refusal, else of the closest to admission."""
        chosen = self.chosen
        if chosen is None:
            chosen = rejected_shortest(self.tried) if self.tried else closest_to_admission(self.eligible)
        return chosen.outcome


class LimitPool:
    """Interchangeable limit sets, such as regions, accounts or keys; one of them serves each request.

    `load_balancing` decides which set is tried first: `round_robin` (starting at `worker_index`), `random`,
    `weighted` (in proportion to `weights`), `least_loaded` (the largest free share) or `failover` (in order).
    When it refuses, the others are tried in the balancer's order, unless `failover` is False.
    `weights` has one entry for each set, by default 1.

    Thread safe. The balancer's turn and the cool-downs are the only state of the pool.
    Sets of one store are chosen and charged in one atomic step; sets of several stores are tried one after the other.
    Raises ValueError for no sets, duplicate sets, or an invalid balancer, weight or worker index.
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
            raise InvalidRequest("the same limit set was passed twice; to prefer one, use weights=")
        if isinstance(worker_index, bool) or not isinstance(worker_index, int) or worker_index < 0:
            raise InvalidRequest(f"worker_index must be a whole number, 0 or more, not {shown(worker_index)}")
        self.failover = failover
        make_balancer = balancer_named(load_balancing)
        self._share(make_balancer(checked_weights(weights, len(self._sets)), worker_index), self._sets)
        self._stores = tuple(dict.fromkeys([limit_set.store for limit_set in self._sets]))
        # A remote store tries all sets in one round trip.
        self._remote = any(store.remote for store in self._stores)
        self._first_alone = not self._remote and not self._balancer.emptiest_first
        self._eligible = EligibleSets(self._sets)

    @classmethod
    def at(
        cls, balancer: Balancer, limit_sets: Iterable[LimitSet], names: Iterable[Hashable], *, failover: bool = True
    ) -> Self:
        """A pool that shares a balancer with others; `names` identify its sets there."""
        pool = cls(limit_sets, balancer.load_balancing, weights=balancer.weights, failover=failover)
        pool._share(balancer, names)
        return pool

    def bound(self, limit_sets: Iterable[LimitSet]) -> LimitPool:
        """A pool of the same sets for another client; it shares the balancer, and which sets serve which requests."""
        pool = LimitPool.__new__(LimitPool)
        pool._sets = tuple(limit_sets)
        pool.failover, pool._eligible = self.failover, self._eligible
        pool._stores, pool._remote, pool._first_alone = self._stores, self._remote, self._first_alone
        pool._share(self._balancer, self._names.values())
        return pool

    def _share(self, balancer: Balancer, names: Iterable[Hashable]) -> None:
        self._balancer = balancer
        self.load_balancing = balancer.load_balancing
        self.worker_index = balancer.worker_index
        self.weights = balancer.weights
        self._names: dict[BoundLimits, Hashable] = dict(zip(self._sets, names, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(LimitPool, weights=self.weights, failover=self.failover)
        arguments = (self._sets, self.load_balancing, self.worker_index)
        return make, arguments, dict(self._balancer.cooling)

    def __setstate__(self, cooling: Mapping[Hashable, Cooling]) -> None:
        self._balancer.cooling.update(cooling)

    @overload
    def __getitem__(self, which: int) -> LimitSet: ...
    @overload
    def __getitem__(self, which: str) -> AnyLimit: ...
    def __getitem__(self, which: int | str) -> LimitSet | AnyLimit:
        if not isinstance(which, str):
            return self._set_at(which)
        if len(self._sets) > 1:
            raise TypeError(
                f"a pool of {len(self._sets)} sets has several limits {which!r}: choose a set, as in pool[0]"
            )
        return self._sets[0][which]

    def __iter__(self) -> Iterator[LimitSet]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __repr__(self) -> str:
        return f"LimitPool({list(self._sets)!r}, {self.load_balancing!r})"

    def try_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """Acquire from one of the sets without waiting; `config` of the result identifies the set.

        When all refuse, the result is the refusal that ends first. `priority` is that of `LimitSet.try_acquire`.
        Raises InvalidRequest (a ValueError) when no set has all rates that are requested,
        and NeverAdmissible (a ValueError) for more than any of them can ever admit.
        """
        requested = of_class(requested, priority)
        return self._try(requested, self._ordered(requested))

    def acquire(
        self, requested: Requested = None, timeout: Timeout = None, *, priority: str | None = None
    ) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds for any of the sets (None: no limit; 0: do not wait).

        A waiter queues for all sets that refused it and takes the first one that admits.
        Raises LimitTimeout (a TimeoutError) when the time is up, LimitExceeded immediately where all sets are blocked,
        and the errors of `try_acquire`.
        """
        requested = of_class(requested, priority)
        seconds, order, refused = checked_timeout(timeout), self._ordered(requested), None
        if seconds == 0 or not self._busy():
            refused = self._try(requested, order)
            if refused or seconds == 0:
                return _admitted(refused)
        choice = Choice(())
        try:
            choice = self._choice(requested, order, refused)
            admitted = wait_in_thread(choice, seconds)
            admitted.track()
        except BaseException:
            _give_up(choice)
            raise
        return admitted

    async def atry_acquire(self, requested: Requested = None, *, priority: str | None = None) -> Acquisition:
        """`try_acquire` for asyncio."""
        requested = of_class(requested, priority)
        return await self._atry(requested, self._ordered(requested))

    async def aacquire(
        self, requested: Requested = None, timeout: Timeout = None, *, priority: str | None = None
    ) -> Acquisition:
        """`acquire` for asyncio: waits without blocking the event loop."""
        requested = of_class(requested, priority)
        seconds, order, refused = checked_timeout(timeout), self._ordered(requested), None
        if seconds == 0 or not self._busy():
            refused = await self._atry(requested, order)
            if refused or seconds == 0:
                return _admitted(refused)
        choice = Choice(())
        try:
            choice = await self._achoice(requested, order, refused)
            admitted = await wait_in_task(choice, seconds)
            admitted.track()
        except BaseException:
            _give_up(choice, in_task=True)
            raise
        return admitted

    @property
    def names(self) -> list[Hashable]:
        """The names of the sets, in their order; a set is its own name where it has no other."""
        return list(self._names.values())

    def cool_down(self, index: int, seconds: float) -> None:
        """Do not use a set for so many seconds of its store's clock, as after an upstream failure; 0 ends a cool-down.

        Of several cool-downs the one that ends last counts. When all sets that can ever admit a request cool down, all
        of them are used.
        """
        self._balancer.cool(self._names[self._set_at(index)], self.cooling(index, seconds))

    async def acool_down(self, index: int, seconds: float) -> None:
        """`cool_down` for asyncio."""
        self.cool_down(index, seconds)

    def cooling(self, index: int, seconds: float) -> Cooling:
        """The cool-down of a set that begins now."""
        limit_set, length = self._set_at(index), round(checked_seconds(seconds) * SECOND_US)
        return Cooling(limit_set.store.clock() + length, length)

    def cooling_seconds(self, index: int) -> float:
        """Seconds until a set has cooled down; 0 where it is in use."""
        limit_set = self._set_at(index)
        return self._balancer.cooling_us(self._names[limit_set], limit_set.store) / SECOND_US

    def peek(self, requested: Requested = None, *, priority: str | None = None) -> Outcome:
        """The outcome of `try_acquire` at this time; charges nothing and takes no turn.

        The choice of a random balancer cannot be predicted: without failover this is the first set.
        """
        foreseen = self.foresee(requested, priority=priority)
        if not foreseen.tried:
            raise NeverAdmissible(foreseen.outcome)
        return foreseen.outcome

    def foresee(self, requested: Requested = None, *, priority: str | None = None) -> Foreseen:
        """The sets that `try_acquire` would try now, with their states; charges nothing and takes no turn.

        Raises InvalidRequest as `try_acquire` does.
        """
        requested = of_class(requested, priority)
        eligible = self._eligible.find(requested)
        in_use = self._in_use(eligible, requested)
        preferred = self._prepare(requested, self._balancer.preview(in_use))
        others = self._prepare(requested, [index for index in eligible if index not in in_use])
        for acquisition in [*preferred, *others]:
            peek(acquisition)
        tried = [acquisition for acquisition in preferred if acquisition.fits]
        if self._balancer.emptiest_first:
            tried.sort(key=lambda acquisition: acquisition.load())
        return Foreseen(tuple(tried if self.failover else tried[:1]), (*preferred, *others))

    def get_stats(self) -> dict[str, int | str | list[dict[str, Stats]]]:
        """`num_limit_sets`, `load_balancing`, and the live state of each set in `limit_sets`; changes nothing."""
        return {
            "num_limit_sets": len(self._sets),
            "load_balancing": self.load_balancing,
            "limit_sets": [limit_set.get_stats() for limit_set in self._sets],
        }

    def _try(self, requested: Requested, order: Candidates) -> Acquisition:
        first = None
        if self._first_alone:
            try:
                first = self._sets[order[0]].try_acquire(requested)
            except NeverAdmissible:
                if len(order) == 1:
                    raise
            if first is not None and (first.admitted or not self.failover or len(order) == 1):
                return first
        prepared = self._prepare(requested, order if first is None else order[1:])
        if first is not None and not any(acquisition.fits for acquisition in prepared):
            return first
        choice = self._one_of(admissible(prepared))
        try:
            admitted = choice.acquire(choice.acquisitions)
            if admitted is not None:
                admitted.track()
        except BaseException:
            _give_up(choice)
            raise
        return _rejected(first, prepared) if admitted is None else admitted

    async def _atry(self, requested: Requested, order: Candidates) -> Acquisition:
        if not self._remote:
            return self._try(requested, order)
        prepared = self._prepare(requested, order)
        choice = self._one_of(await aadmissible(prepared))
        try:
            admitted = await choice.aacquire(choice.acquisitions)
            if admitted is not None:
                admitted.track()
        except BaseException:
            _give_up(choice, in_task=True)
            raise
        return _rejected(None, prepared) if admitted is None else admitted

    def _one_of(self, acquisitions: Sequence[Acquisition]) -> Choice:
        return Choice(acquisitions, emptiest_first=self._balancer.emptiest_first, failover=self.failover)

    def _choice(self, requested: Requested, order: Candidates, rejected: Acquisition | None) -> Choice:
        """What to wait for: any eligible set, also those that cool down, or without failover the chosen one."""
        prepared = self._waited_for(requested, order, rejected)
        if rejected is None or self.failover:
            prepared = admissible(prepared)
        if self.failover:
            return Choice(prepared, emptiest_first=self._balancer.emptiest_first, cooling_us=self._cooling_us)
        return Choice((sorted_by_load(prepared) if self._balancer.emptiest_first else prepared)[:1])

    async def _achoice(self, requested: Requested, order: Candidates, rejected: Acquisition | None) -> Choice:
        """`_choice` for asyncio."""
        prepared = self._waited_for(requested, order, rejected)
        if rejected is None or self.failover:
            prepared = await aadmissible(prepared)
        if self.failover:
            return Choice(prepared, emptiest_first=self._balancer.emptiest_first, cooling_us=self._cooling_us)
        return Choice((await asorted_by_load(prepared) if self._balancer.emptiest_first else prepared)[:1])

    def _waited_for(
        self, requested: Requested, order: Candidates, rejected: Acquisition | None
    ) -> Sequence[Acquisition]:
        if not self.failover and rejected is not None:
            index = next(index for index in order if self._sets[index] is rejected.limit_set)
            return self._prepare(requested, [index])
        eligible = self._eligible.find(requested) if self.failover else ()
        return self._prepare(requested, [*order, *[index for index in eligible if index not in order]])

    def _set_at(self, index: int) -> LimitSet:
        try:
            return self._sets[index]
        except IndexError:
            last = len(self._sets) - 1
            raise IndexError(f"the pool has no set {index}: it has {last + 1}, from 0 to {last}") from None

    def _prepare(self, requested: Requested, order: Candidates) -> list[Acquisition]:
        return [self._sets[index].prepare(requested, checks=False) for index in order]

    def _ordered(self, requested: Requested) -> Candidates:
        """The sets to try now, in the balancer's order."""
        eligible, balancer = self._eligible.find(requested), self._balancer
        return balancer.order(self._in_use(eligible, requested) if balancer.cooling else eligible)

    def _in_use(self, eligible: Candidates, requested: Requested) -> Candidates:
        """The sets that do not cool down, or all where none of them can ever admit as much."""
        in_use = [index for index in eligible if not self.cooling_seconds(index)]
        if len(in_use) == len(eligible):
            return eligible
        fits = any(acquisition.fits for acquisition in self._prepare(requested, in_use))
        return in_use if fits else eligible

    def _cooling_us(self, acquisition: Acquisition) -> int:
        limit_set = acquisition.limit_set
        return self._balancer.cooling_us(self._names[limit_set], limit_set.store)

    def _busy(self) -> bool:
        """Whether others wait already."""
        return any(store.line.busy or store.line.competitors for store in self._stores)


def checked_seconds(seconds: float) -> float:
    """Return the length of a cool-down; InvalidRequest unless it is a number of seconds, 0 or more."""
    duration = checked_timeout(seconds, "seconds must be a number")
    if duration is None:
        raise InvalidRequest(f"seconds must be a number, 0 or more, not {shown(seconds)}")
    return duration


def _checked_sets(limit_sets: object) -> tuple[LimitSet, ...]:
    """The sets of a pool; InvalidRequest unless they are several limit sets."""
    if isinstance(limit_sets, LimitSet) or not isinstance(limit_sets, Iterable):
        raise InvalidRequest(f"limit_sets must be several, as in LimitPool([limit_set]), not {shown(limit_sets)}")
    sets = tuple(limit_sets)
    if not sets:
        raise InvalidRequest("a pool needs at least one limit set")
    for limit_set in sets:
        if not isinstance(limit_set, LimitSet):
            raise InvalidRequest(f"limit_sets must be limit sets, not {shown(limit_set)}")
    return sets


def _admitted(acquisition: Acquisition) -> Acquisition:
    """The acquisition, or LimitTimeout where it was refused."""
    if not acquisition:
        raise LimitTimeout.of(acquisition)
    return acquisition


def _rejected(first: Acquisition | None, others: Sequence[Acquisition]) -> Acquisition:
    """The rejection that ends first, of the one that was tried first and those of the others that were tried."""
    rejected = [] if first is None else [first]
    return rejected_shortest([*rejected, *[acquisition for acquisition in others if acquisition.admitted is False]])


def _give_up(choice: Choice, *, in_task: bool = False) -> None:
    """Refund a charge whose choice was interrupted.

    A remote store refunds by itself what a cancelled task was charged.
    """
    for acquisition in choice.acquisitions:
        if acquisition.admitted and not (in_task and acquisition.limit_set.store.remote):
            acquisition.give_up()
