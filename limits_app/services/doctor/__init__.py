"""The doctor: checks the site, and reports problems with advice; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from limits_app import conf
from limits_app.engine.errors import Unresolved
from limits_app.models import Enforcement, write_alias
from limits_app.models.own_queries import DATABASE_ERRORS
from limits_app.services.doctor.configuration import ShowChecked, configured
from limits_app.services.doctor.environment import (
    Finding,
    Severity,
    asked_database,
    asked_stores,
    checked,
    migrated,
    pooled_database,
    pooled_stores,
    used,
    waiting,
)
from limits_app.services.doctor.forwarded import not_forwarded
from limits_app.services.doctor.prices import priced
from limits_app.services.emergency import emergency
from limits_app.services.explain_text import emergency_text

__all__ = ["PATIENCE_SECONDS", "Finding", "Severity", "diagnose", "findings", "severest_first"]

PATIENCE_SECONDS: Final = 5.0
"""How long a store or a database may take to answer."""


def diagnose(*, patience_seconds: float = PATIENCE_SECONDS) -> list[Finding]:
    """Return all findings, the most severe first; changes nothing, and waits for each answer at most that long.

    Checks of an unavailable database or store are left out.
    """
    return severest_first(findings(patience_seconds))


def severest_first(unsorted: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, and those of one severity in the order in which they were found."""
    order = [*Severity]
    return sorted(unsorted, key=lambda finding: order.index(finding.severity))


def findings(patience_seconds: float, show: ShowChecked = lambda _checked: None) -> Iterator[Finding]:
    """Give the findings as they are found; `show` is called with the number of policies that were checked so far."""
    if conf.problems():
        yield from checked(stores_answer=False)
        return
    stores = [*asked_stores(patience_seconds)]
    yield from stores
    yield from pooled_stores(patience_seconds)
    yield from pooled_database(patience_seconds)
    if not stores:
        yield from waiting()
    database = [*asked_database(patience_seconds)]
    yield from database
    yield from checked(stores_answer=not stores and not database)
    if not database:
        yield from _of_database(show)


def _of_database(show: ShowChecked) -> Iterator[Finding]:
    missing = [*migrated()]
    yield from missing
    if any(finding.id == "limits_app.D002" for finding in missing):
        return  # tables that are not there cannot be read
    using = write_alias()
    try:
        yield from _lifted()
        yield from configured(using, show)
        yield from not_forwarded(using)
        yield from priced(using)
        yield from used(using)
    except (*DATABASE_ERRORS, Unresolved) as error:
        yield Finding(
            "limits_app.D005",
            Severity.ERROR,
            f"the database {using!r} failed during the checks: {error}",
            "Correct the error that the database reports, and run the doctor again.",
        )


def _lifted() -> Iterator[Finding]:
    """Whether the emergency switch lifts all limits."""
    switch = emergency()
    if conf.get(conf.ENABLED) and switch.mode != Enforcement.ENFORCE:
        yield Finding(
            "limits_app.D028",
            Severity.WARNING,
            emergency_text(switch).rstrip("."),
            "When the emergency is over, run manage.py limits emergency enforce.",
        )
