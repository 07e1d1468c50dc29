"""Choosing among claims: the rows of all of them are opened together, and the first claim that fits is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from limits_app.core.claim import Claim
from limits_app.core.parts import Part
from limits_app.stores.database.deciding import admitted, charged, check, refused, seen
from limits_app.stores.database.ledger import Ledger, Page
from limits_app.stores.database.links import Link
from limits_app.stores.database.records import Record

__all__ = ["Choice", "charge_first"]


class Choice(NamedTuple):
    """In which order claims are asked, and whether more than the first; see `Store.acquire_first`."""

    emptiest_first: bool
    failover: bool


def charge_first(  # noqa: PLR0917 - the last one is given later
    claims: Sequence[Claim], choice: Choice, process: int, ledger: Ledger, link: Link
) -> None:
    """Fill in the decisions on those of the claims that are asked, of which at most one is charged."""
    parts = tuple(dict.fromkeys(part for claim in claims for part in claim.plan.parts))
    done = False
    while not done:
        page = ledger.open(link, parts).without_expired()
        for claim in claims:
            check(claim.plan, page.version)
            claim.admitted = None
        found = dict(zip(parts, page.records, strict=True))
        asked = _in_order(claims, page, found) if choice.emptiest_first else claims
        done = _decide(
            asked if choice.failover else asked[:1],
            page,
            found,
            process=process,
            write=partial(ledger.write, link, page),
        )


def _in_order(claims: Sequence[Claim], page: Page, found: dict[Part, Record]) -> list[Claim]:
    """The emptiest first, and equals as they stand."""
    for claim in claims:
        seen(claim, [found[part] for part in claim.plan.parts], page.now)
    return sorted(claims, key=Claim.load)


def _decide(
    claims: Sequence[Claim], page: Page, found: dict[Part, Record], *, process: int, write: Callable[..., bool]
) -> bool:
    for claim in claims:
        records = [found[part] for part in claim.plan.parts]
        after = charged(claim, process, records, page.now)
        if after is not None:
            return write(after, partial(admitted, claim))
        page.load_logs()  # for those who look at them after the transaction
        refused(claim, records, page.now)
    # A changed definition counts from when it is seen first, whatever is decided then.
    return write(page.carried, lambda _records, _now: None)
