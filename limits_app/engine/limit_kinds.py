"""What the amounts of a limit are: requests, amounts that callers name, or money."""

from __future__ import annotations

from typing import Final

from limits_app.engine.amounts import MILLI, Amount, to_micro, to_milli
from limits_app.engine.limits import AnyLimit, CallLimit, CountedUnit, MeteredLimit, QuotaLimit, RateLimit

CALLS: Final = "calls"
"""The key of requests in text; that of their counters is `CallLimit.key`."""
CALL_KEYS: Final = (CALLS, CallLimit.key)


def counts_requests(limit: AnyLimit) -> bool:
    """Whether a request counts 1 of a limit without naming it: of a call limit, and of a quota of requests."""
    match limit:
        case CallLimit():
            return True
        case QuotaLimit():
            return limit.key in CALL_KEYS
        case CountedUnit():
            return limit.requested_as in CALL_KEYS
        case _:
            return False


def is_metered(limit: AnyLimit) -> bool:
    """Whether callers request the amounts of a limit by name, and report them later."""
    return isinstance(limit, MeteredLimit | CountedUnit) and not counts_requests(limit)


def counts_money(limit: AnyLimit) -> bool:
    """Whether the amounts of a limit are money, which stores count in millionths."""
    return isinstance(limit, RateLimit | QuotaLimit | CountedUnit) and limit.is_money is True


def counted_milli(limit: AnyLimit, amount: Amount) -> int:
    """Return an amount of a definition in thousandths of what stores count: millionths of a currency, or units."""
    return to_micro(amount) * MILLI if counts_money(limit) else to_milli(amount, decimals=True)
