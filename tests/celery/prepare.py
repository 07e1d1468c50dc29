"""Run once for each site of the tests: makes its tables and sets its limits."""

from __future__ import annotations

import django
from django.core.management import call_command


def main() -> None:
    """Make the tables and set the limits."""
    django.setup()
    from limits_app import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit, limits

    call_command("migrate", verbosity=0)
    window = RateLimitAlgorithm.SLIDING_WINDOW
    limits.set_resource_limits("work", [CallLimit.per_second(20, algorithm=window)])
    limits.set_entity_limits("tenant:bulk", [CallLimit.per_second(100, burst=10)], resource="work")
    limits.set_entity_limits("tenant:strict", [CallLimit.per_second(20, algorithm=window)], resource="work")
    limits.set_entity_limits("tenant:ordered", [CallLimit.per_second(8)], resource="work")
    limits.set_resource_limits("tokens", [RateLimit("tpm", 100, 3600)])
    limits.set_resource_limits("desk", [ResourceLimit("desk", 1)])
    limits.set_resource_limits("hot", [QuotaLimit.per_month("units", 100_000)], slice_seconds=60)
    limits.set_resource_limits("full", [CallLimit.per_day(1)])
    limits.set_resource_limits("inside", [ResourceLimit("seat", 10)])


if __name__ == "__main__":
    main()
