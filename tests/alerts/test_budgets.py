"""A mail at a share of a budget: units with prices charge it, and it is alerted once in its period."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import time_machine
from django.core import mail
from pytest_django import Settings

from limits_app import alerts, limits
from limits_app.alerts import recorder
from limits_app.models import AlertChannel, AlertKind, AlertRule, Entity, Price
from limits_app.services.near_limits import thresholds
from limits_app.testing import fresh_limits

START = datetime(2026, 3, 1, 8, tzinfo=UTC)


@pytest.fixture
def site(settings: Settings, transactional_db: None) -> Iterator[time_machine.Traveller]:
    """A team of two keys with a budget of 10 dollars a month, and a rule that sends mail at 80 percent of it."""
    settings.LIMITS = {"ALERTS": True}
    thresholds.clear()
    with time_machine.travel(START, tick=False) as traveller, fresh_limits():
        team = Entity.objects.create(identifier="team:x")
        for name in ("key:a", "key:b"):
            Entity.objects.create(identifier=name, parent=team, cascade=True)
        Price.objects.create(
            resource="llm/*", unit="tokens", amount=Decimal(1), per=1_000, currency="usd", valid_from=START
        )
        limits.set_entity_limits("team:x", ["usd=10/month"], counted="total")
        AlertRule.objects.create(
            name="team:x 80 %",
            kind=AlertKind.THRESHOLD,
            percent=80,
            entity="team:x",
            channel=AlertChannel.EMAIL,
            target="ops@example.org",
        )
        yield traveller


def use(entity: str, tokens: int, reported: int | None = None) -> None:
    with limits.acquire("llm/large", entity=entity, requested={"tokens": tokens}) as acquisition:
        acquisition.update({"tokens": tokens if reported is None else reported})


def mails() -> list[str]:
    """The mails that were sent since the last call."""
    recorder.flush()
    alerts.send()
    bodies = [str(message.body) for message in mail.outbox]
    mail.outbox.clear()
    return bodies


def test_mail_is_sent_once_at_80_percent_of_a_budget(site: time_machine.Traveller) -> None:
    use("key:a", 4_000)
    use("key:b", 3_900)
    assert mails() == []
    use("key:a", 100)
    [body] = mails()
    assert "usd" in body
    assert "team:x" in body
    use("key:b", 500)
    assert mails() == []
    site.move_to(START + timedelta(days=31))
    use("key:b", 7_000)
    assert mails() == []
    use("key:b", 1_000)
    assert len(mails()) == 1
