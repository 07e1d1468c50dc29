"""Limited tasks where RabbitMQ is the broker: one worker dies with all its processes, and the other one goes on."""

from __future__ import annotations

import pytest

from tests.celery.site import PATIENCE, celery_site
from tests.servers.rabbitmq import rabbitmq_server
from tests.servers.redis import until


@pytest.mark.slow  # until the server has started
@pytest.mark.release
def test_rabbitmq_gives_the_tasks_of_a_dead_worker_to_another_one_and_loses_none() -> None:
    with rabbitmq_server() as broker, celery_site(broker=broker) as site:
        first, _ = site.start_worker(processes=2), site.start_worker(processes=2)
        site.until_ready()
        sent = [site.send("work", "strict", number) for number in range(100)]
        until(lambda: len(site.lines("begun")) >= 40, "they do not begin")
        site.kill(first)
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == list(range(100))
        moments = sorted(moment for _, moment in site.lines("begun"))
        assert all(later - earlier >= 1_000_000 for earlier, later in zip(moments, moments[20:], strict=False))
        assert {text for text, _ in site.lines("done")} == {str(number) for number in range(100)}

        site.send("start_chord", list(range(5))).get(timeout=PATIENCE)
        until(lambda: bool(site.lines("total")), "the chord does not end")
        assert [text for text, _ in site.lines("total")] == ["10"]
