"""Usage: what was admitted and refused, as far as it has been rolled up."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from limits_app import conf
from limits_app.core.errors import InvalidRequest, StoreUnavailable
from limits_app.core.store import is_counting
from limits_app.models import Period
from limits_app.stores.registry import resilient_store
from limits_app.usage import By, DenialCount, Use, Uses, denied, pruning, read, rollup

__all__ = ["DenialCount", "RolledUp", "denials", "prune_usage", "roll_up", "usage", "uses"]

logger = logging.getLogger("limits_app")

T = TypeVar("T", By, Period)


@dataclass(frozen=True, slots=True)
class RolledUp:
    """How many counts of each store alias were added, and why some stores could not be asked."""

    added: dict[str, int]
    failed: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """The same as plain data, for JSON."""
        return asdict(self)


def usage(
    resource: str | None = None,
    *,
    entity: str | None = None,
    key: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
    most: int | None = None,
) -> list[Use]:
    """What was admitted and refused from `since` up to `until`, as of the last `roll_up`.

    It is told apart `by` any of resource, entity and period, and always by limit; the largest use comes first, within
    the latest period first, and `most` says how many rows are wanted: `by="entity", key="tokens", most=10` are the
    ten who used most tokens. An empty entity is the site itself. Periods are `hour` or `day` and count as a whole
    where they begin in that time, which is by default the last 30 days, or 48 hours.
    Raises InvalidRequest (a ValueError) for a word that is none.
    """
    _check(most)
    return uses(resource, entity=entity, key=key, period=period, since=since, until=until, by=by)[:most]


def uses(
    resource: str | None = None,
    *,
    entity: str | None = None,
    key: str | None = None,
    period: str = "day",
    since: datetime | None = None,
    until: datetime | None = None,
    by: str | Iterable[str] = (),
) -> Uses:
    """`usage` a part at a time, for those who turn pages: all of it may be more than anybody reads."""
    for name, moment in (("since", since), ("until", until)):
        if not isinstance(moment, datetime | None):
            raise InvalidRequest(f"{name} must be a datetime or None, not {moment!r}")
    words = [by] if isinstance(by, str) else by
    apart = {_word(By, "by", word) for word in words}
    length = _word(Period, "period", period)
    return read(resource, entity, key, period=length, since=since, until=until, by=apart)


def denials(
    resource: str | None = None,
    *,
    entity: str | None = None,
    key: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int | None = None,
) -> list[DenialCount]:
    """Who was refused by which limit, minute by minute, from `since` up to `until`: by default the last 48 hours.

    The latest minute comes first, and in it who was refused most; `most` says how many rows are wanted.
    An empty entity is the site itself. Processes write what they refuse every second, so the last second may be
    missing. Raises InvalidRequest (a ValueError) for a time that no calendar has.
    """
    _check(most)
    return [DenialCount.of(row) for row in denied(resource, entity, key, since=since, until=until)[:most]]


def roll_up() -> RolledUp:
    """Add what the stores have counted to the snapshots, exactly once, whoever else does so at the same time.

    A store that cannot be asked does not keep the others; its counts come later. Raises RuntimeError in a transaction.
    """
    added, failed = {}, {}
    for alias in conf.get(conf.STORES):
        try:
            store = resilient_store(alias).open()
            if is_counting(store):
                added[alias] = rollup.roll_up(store)
        except StoreUnavailable as error:
            logger.warning("usage in the store %r could not be rolled up: %s", alias, error)
            failed[alias] = str(error)
    return RolledUp(added, failed)


def prune_usage(*, archive: Path | str | None = None) -> dict[str, int]:
    """Delete snapshots and refusals that are older than the settings keep; says how many of each there were.

    With `archive`, a directory, all that is deleted is there first, as gzipped lines of JSON in files of this run.
    """
    return pruning.prune(archive=None if archive is None else Path(archive))


def _check(most: int | None) -> None:
    if most is not None and most < 1:
        raise InvalidRequest(f"most must be 1 or more, not {most}")


def _word(words: type[T], what: str, word: str) -> T:
    try:
        return words(word)
    except ValueError:
        known = ", ".join(repr(str(one)) for one in words)
        raise InvalidRequest(f"{what} must be one of {known}, not {word!r}") from None
