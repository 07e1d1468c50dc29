"""Simulation of budgets and of prices: what usage would have cost, and whom a budget would have rejected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from limits_app.models import BucketKind, Price, UsagePeriod, UsageSnapshot
from limits_app.services.limits_file import read_content
from limits_app.services.simulation.events import SimulatedRequest, csv_events, recorded_events
from limits_app.services.simulation.proposal import Proposal
from limits_app.services.simulation.replay import replay
from tests.commands.running import run

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, tzinfo=UTC)
LIMITS = """
policies:
  - {resource: llm/gpt, limits: [usd=1/month]}
"""
NEW_PRICE = """
prices:
  - {resource: "llm/*", unit: tokens, amount: "0.002", per: 1, currency: usd, valid_from: 2100-01-01T00:00:00Z}
"""


def has_price(resource: str, amount: int, valid_from: datetime | str) -> None:
    """Let 1,000 tokens cost so many dollars from a time on."""
    Price.objects.create(
        resource=resource, unit="tokens", amount=Decimal(amount), per=1000, currency="usd", valid_from=valid_from
    )


@pytest.fixture(autouse=True)
def _price() -> None:
    has_price("llm/*", 1, START - timedelta(days=9))


def recorded(key: str, units: float, entity: str = "u") -> None:
    whose = {"resource": "llm/gpt", "bucket": BucketKind.ENTITY, "entity": entity, "key": key}
    milli = round(units * (10**9 if key.startswith("usd") else 1000))
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=START, admitted_milli=milli, **whose)


def test_recorded_usage_is_charged_to_a_budget() -> None:
    recorded("tokens", 1500)
    recorded("usd", 1.75)
    recorded("usd+", 0.25)
    recorded("tokens", 400, "v")
    report = replay(recorded_events(), Proposal.of_content(read_content(LIMITS)))
    [refusal] = report.refusals()
    assert (refusal.entity, refusal.key) == ("u", "usd")
    assert 0.75 <= refusal.count <= 0.76
    asked, refused = report.costs["usd"]
    assert asked == Decimal("2.15")
    assert float(refused) == pytest.approx(refusal.count, abs=0.001)
    assert (report.entities, report.entities_refused) == (2, 1)


def test_proposed_price_applies_to_earlier_usage() -> None:
    recorded("tokens", 1500)
    report = replay(recorded_events(), Proposal.of_content(read_content(LIMITS + NEW_PRICE)))
    assert report.costs["usd"][0] == 3
    assert report.refusals()[0].count == pytest.approx(2, abs=0.01)


def test_prices_without_a_budget_only_cost() -> None:
    recorded("tokens", 1500)
    report = replay(recorded_events(), Proposal.of_content(read_content("resources:\n  llm/gpt: {}\n")))
    assert (report.costs, report.refusals()) == ({"usd": (Decimal("1.5"), Decimal(0))}, [])


def test_events_are_charged_in_money() -> None:
    lines = ["time,entity,tokens,usd", *[f"{60 * number},u,400,0.1" for number in range(4)]]
    decisions: list[bool] = []

    def note(_: SimulatedRequest, admitted: bool) -> None:
        decisions.append(admitted)

    has_price("llm/gpt", 1, "1970-01-01T00:00:00Z")
    report = replay(csv_events(lines, resource="llm/gpt"), Proposal.of_content(read_content(LIMITS)), decided=note)
    assert decisions == [True, True, False, False]
    assert report.costs == {"usd": (Decimal(2), Decimal(1))}


def test_price_that_changes_within_the_replayed_time() -> None:
    has_price("llm/gpt", 3, START + timedelta(hours=1))
    recorded("tokens", 100)
    whose = {"resource": "llm/gpt", "bucket": BucketKind.ENTITY, "entity": "u", "key": "tokens"}
    later = START + timedelta(hours=1)
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=later, admitted_milli=100_000, **whose)
    report = replay(recorded_events(), Proposal.of_content(read_content(LIMITS)))
    assert report.costs == {"usd": (Decimal("0.4"), Decimal(0))}


def test_the_command_reports_costs(tmp_path: Path) -> None:
    recorded("tokens", 1500)
    file = tmp_path / "limits.yaml"
    file.write_text(LIMITS)
    ran = run(f"simulate --file {file}")
    assert "It would cost 1.5 USD, of which 0." in ran.err
    assert "llm/gpt" in ran.out
