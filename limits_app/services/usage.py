"""Usage: admitted amounts and rejections, as of the last roll-up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from socket import gethostname
from time import monotonic
from typing import Final, TypeVar

from limits_app import conf
from limits_app.acquiring import MOST_COLLECTORS
from limits_app.engine import EntityName, short_key
from limits_app.engine.errors import InvalidRequest, StoreUnavailable
from limits_app.models import UsagePeriod, note_scheduled, recent_helpers
from limits_app.services.candidates import revert_candidates
from limits_app.services.costs import Spend, has_costs, spends, spends_of_clients, uses_with_costs
from limits_app.services.usage_sums import Chosen
from limits_app.stores.registry import resilient_store, state_directories
from limits_app.stores.resilient import ResilientStore
from limits_app.usage import one_time_clients, rollup
from limits_app.usage.denial_counter import denials as denials_of_process
from limits_app.usage.evaluation_counter import evaluations
from limits_app.usage.reading import By, DenialCount, LimitKeys, Use, Uses, denied, read
from limits_app.usage.rollup import CountsAdded
from limits_app.usage.units import read_units, unit_of

logger = logging.getLogger("limits_app")

T = TypeVar("T", By, UsagePeriod)

ROLL_UP: Final = "roll_up"
"""The name of the job."""
_PLACE_LENGTH: Final = 16
ROLL_UP_HELPERS: Final = range(1, MOST_COLLECTORS)
"""The numbers of the processes that may help with it; each is another collector of a store."""


def machine_roll_up() -> str | None:
    """The name of the job that adds what is counted on this machine alone; None where other machines see all stores.

    Processes that see the same files have the same name.
    """
    directories = state_directories()
    if not directories:
        return None
    shared = "\n".join([gethostname(), *map(str, directories)])
    return f"{ROLL_UP}:{short_key(shared).hex()[:_PLACE_LENGTH]}"


@dataclass(frozen=True, slots=True)
class RolledUp:
    """How many counts of each store alias were added, and the errors of stores that were unavailable.

    `is_complete` says whether nothing was left to the next call.
    """

    added: dict[str, int]
    failed: dict[str, str]
    is_complete: bool = True

    def as_dict(self) -> dict[str, object]:
        """The counts and errors as plain data, for JSON."""
        return {"added": self.added, "failed": self.failed}


def usage(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    key: LimitKeys = None,
    plan: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
    most: int | None = None,
    cost: bool = False,
) -> list[Use]:
    """Admitted amounts and rejections from `since` up to `until`, as of the last `roll_up`.

    `key` is a limit key, or several; `plan` is the name of a plan by which clients were served, empty for none. Rows
    are grouped `by` any of resource, entity, plan and period, and always by limit. The latest period comes first, and
    in it the largest use. `most` is the number of rows: `by="entity", key="tokens", most=10` are the ten entities with
    the largest use of tokens. An empty entity is the site itself. A `period`, `hour` or `day`, counts where it begins
    in that time, which is by default the last 48 hours, or the last 30 days.
    With `cost`, each row has what its amount costs, by currency, at the price that its unit had in the hour of its use.
    Raises InvalidRequest (a ValueError) for an invalid argument.
    """
    _check(most)
    selected = uses(
        resource, entity=entity, key=key, plan=plan, period=period, since=since, until=until, by=by, cost=cost
    )
    return selected[:most]


def uses(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    key: LimitKeys = None,
    plan: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
    cost: bool = False,
) -> Uses:
    """`usage` as a sequence that is read in parts, for pagination."""
    chosen = Chosen(resource, entity, key, plan, _word(UsagePeriod, "period", period), since, until)
    return _read(chosen, by, cost=cost)


def _read(chosen: Chosen, by: str | Iterable[str], *, cost: bool) -> Uses:
    apart = _groupings(by)
    return uses_with_costs(chosen, apart) if cost else read(**chosen._asdict(), by=apart)


def usage_by_unit(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    unit: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
    most: int | None = None,
    cost: bool = False,
) -> list[Use]:
    """`usage` by unit in place of limit, as pages show it: requests are one unit, whatever limits have counted them.

    Their key is that of call limits. Each request is counted once, also where several limits of a client count it.
    """
    _check(most)
    length, apart = _word(UsagePeriod, "period", period), _groupings(by)
    uses = read_units(resource, entity, unit, period=length, since=since, until=until, by=apart, most=most)
    if not cost:
        return uses
    costs: dict[tuple[object, ...], dict[str, Decimal]] = {}
    chosen = Chosen(resource, entity, None, None, length, since, until)
    for use in uses_with_costs(chosen, apart)[:]:
        sums = costs.setdefault(_group_of(use), {})
        for currency, number in (use.cost or {}).items():
            sums[currency] = sums.get(currency, Decimal(0)) + number
    return [replace(use, cost=costs.get(_group_of(use), {})) for use in uses]


def spend(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    plan: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
    most: int | None = None,
) -> list[Spend]:
    """What the usage of priced units costs, and amounts given in money itself, as of the last `roll_up`.

    The arguments are those of `usage`; `by="entity", most=10` are the ten clients with the highest amounts. Amounts are
    exact decimals, one for each currency: the counted units times the price of their hour. An entity above others
    includes what these used, and that is left out where amounts of all entities are added up.
    """
    _check(most)
    length = _word(UsagePeriod, "period", period)
    return spends(Chosen(resource, entity, None, plan, length, since, until), _groupings(by))[:most]


def spend_by_client(
    keys: Iterable[str],
    resource: str | None = None,
    *,
    entity: EntityName = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[list[Spend], list[Spend]]:
    """`spend` by entity, and that of all entities, where `keys` are the limits with usage in this time."""
    chosen = Chosen(resource, entity, None, None, _word(UsagePeriod, "period", period), since, until)
    return spends_of_clients(chosen) if has_costs(keys) else ([], [])


def _group_of(use: Use) -> tuple[object, ...]:
    return (use.bucket, unit_of(use.key), use.resource, use.entity, use.plan, use.below, use.start)


def _groupings(by: str | Iterable[str]) -> set[By]:
    words = [by] if isinstance(by, str) else by
    return {_word(By, "by", word) for word in words}


def denials(
    resource: str | None = None,
    *,
    entity: EntityName = None,
    key: LimitKeys = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int | None = None,
) -> list[DenialCount]:
    """Rejections by minute, entity and limit, from `since` up to `until`: by default the last 48 hours.

    The latest minute comes first, and in it the largest count. `most` is the number of rows.
    An empty entity is the site itself. Rejections are those of the last `roll_up`, which also adds those of this
    process; other processes may have some of the last second. Raises InvalidRequest (a ValueError) for an invalid time.
    """
    _check(most)
    return [DenialCount.of(row) for row in denied(resource, entity, key, since=since, until=until)[:most]]


def roll_up(*, progress: CountsAdded = rollup.no_progress) -> RolledUp:
    """Add the counts of the stores to the snapshots, exactly once, also where several processes do so at the same time.

    So are rejections, with those that this process has counted. Counts of an unavailable store are added later. Raises
    RuntimeError in a transaction. Of hours that have ended, the usage of one-time clients is folded, and promoted
    candidates that reject too much are reverted. The background job pauses for ten minutes. `progress` is called with
    the number of counts that were added so far.
    """
    for job in filter(None, (ROLL_UP, machine_roll_up())):
        note_scheduled(job)
    return roll_up_all(progress=progress)


def roll_up_all(aliases: Collection[str] | None = None, *, progress: CountsAdded = rollup.no_progress) -> RolledUp:
    """Roll up some stores, by default all, and do what follows from the counts; see `roll_up`."""
    rolled_up = add_counts(aliases, progress=progress)
    one_time_clients.fold()
    revert_candidates()
    return rolled_up


def add_counts(
    aliases: Collection[str] | None = None,
    *,
    seconds: float = 60.0,
    progress: CountsAdded = rollup.no_progress,
    helper: int | None = None,
) -> RolledUp:
    """Add the counts of some stores, by default all, for some seconds each; the next call goes on.

    A `helper` takes a part of what other processes add at this time. Without it, batches that helpers have left are
    added too; those that one of them adds at this time are added once.
    """
    added: dict[str, int] = {}
    failed: dict[str, str] = {}
    is_complete = True
    _add_own_rejections()
    for alias in [*conf.get(conf.STORES)] if aliases is None else aliases:
        ends = monotonic() + seconds
        try:
            store = resilient_store(alias).open()
            for collector in _collectors(store, helper):
                show = _after(sum(added.values()), progress)
                number = rollup.roll_up(store, seconds=ends - monotonic(), progress=show, collector=collector)
                added[alias] = added.get(alias, 0) + number
        except StoreUnavailable as error:
            logger.warning("usage in the store %r could not be rolled up: %s", alias, error)
            failed[alias] = str(error)
        is_complete = is_complete and monotonic() < ends
    evaluations.flush_here()
    return RolledUp(added, failed, is_complete)


def _collectors(store: ResilientStore, helper: int | None) -> list[int]:
    """The collectors of a store: that of a helper, or the first one and those of helpers that may have been killed."""
    if helper is not None:
        return [helper] if helper < store.collectors else []
    helpers = range(1, store.collectors)
    return [*range(min(store.collectors, 1)), *(sorted(recent_helpers(ROLL_UP, helpers)) if helpers else ())]


def _after(before: int, progress: CountsAdded) -> CountsAdded:
    """Show what is added after earlier counts."""
    return lambda added: progress(before + added)


def _add_own_rejections() -> None:
    """Add the rejections of this process to those in the store."""
    try:
        denials_of_process.flush_here()
    except StoreUnavailable as error:
        logger.warning("rejections of this process are added later: %s", error)


def _check(most: int | None) -> None:
    if most is not None and most < 1:
        raise InvalidRequest(f"most must be 1 or more, not {most}")


def _word(words: type[T], what: str, word: str) -> T:
    try:
        return words(word)
    except ValueError:
        allowed = ", ".join(repr(str(word)) for word in words)
        raise InvalidRequest(f"{what} must be one of {allowed}, not {word!r}") from None
