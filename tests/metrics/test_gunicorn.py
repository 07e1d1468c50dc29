"""Prometheus in multi-process mode: two workers of gunicorn export the sum of their metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.machine import HOST, free_ports
from tests.servers.redis import redis_server

pytestmark = pytest.mark.product

ROOT = Path(__file__).parents[2]
SECONDS = 60
MIGRATE = (
    "import tests.metrics.gunicorn_site\n"
    "from django.core.management import call_command\n"
    "from limits_app import CallLimit, limits\n"
    "call_command('migrate', verbosity=0)\n"
    "limits.set_resource_limits('reports', [CallLimit.per_day(30)])\n"
)


def get(url: str) -> str:
    with urlopen(url, timeout=SECONDS) as response:
        return str(response.read().decode())


def until(condition: object, seconds: float = SECONDS) -> None:
    """Wait until a condition holds, which raises URLError while the server starts."""
    end = monotonic() + seconds
    while True:
        try:
            if condition():  # type: ignore[operator]
                return
        except URLError:
            pass
        assert monotonic() < end
        sleep(0.05)


def values(url: str) -> dict[tuple[str, ...], float]:
    """The exported samples, by name and labels, which are sorted by their names."""
    families = text_string_to_metric_families(get(f"{url}/metrics"))
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a site with two workers."""
    with site_with(tmp_path, {"KIND": "process", "STATE_DIR": str(tmp_path / "state")}) as url:
        yield url


@contextmanager
def site_with(tmp_path: Path, store: dict[str, str]) -> Iterator[str]:
    """The address of a site with two workers and this store."""
    files = tmp_path / "metrics"
    files.mkdir()
    environment = os.environ | {
        "SITE_DATABASE": str(tmp_path / "site.sqlite3"),
        "SITE_STORE": json.dumps(store),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", MIGRATE], env=environment, cwd=ROOT, check=True, timeout=SECONDS)
    [port] = free_ports()
    command = ["-m", "gunicorn", "tests.metrics.gunicorn_site", "-b", f"{HOST}:{port}", "--workers", "2"]
    server = subprocess.Popen(
        [sys.executable, *command, "--config", "python:tests.metrics.gunicorn_conf", "--log-level", "error"],
        env=environment | {"PROMETHEUS_MULTIPROC_DIR": str(files)},
        cwd=ROOT,
    )
    url = f"http://{HOST}:{port}"
    try:
        until(lambda: get(f"{url}/metrics"))
        yield url
    finally:
        server.terminate()
        server.wait(SECONDS)


def test_two_workers_export_the_sum_of_their_decisions(site: str) -> None:
    answers = []
    until(lambda: answers.append(get(f"{site}/allowed").split()) or len({pid for pid, _ in answers}) == 2)
    while len(answers) < 40:
        answers.append(get(f"{site}/allowed").split())
    admitted = sum(result == "True" for _, result in answers)
    assert admitted == 30

    # Each worker records its decisions within about a second, whether it exports or not.
    decisions = {"admitted": 30, "refused": len(answers) - 30}
    until(
        lambda: {word: values(site).get(("limits_decisions_total", "reports", word)) for word in decisions} == decisions
    )
    found = values(site)
    assert found["limits_refusals_total", "call_count", "reports"] == len(answers) - 30
    assert found["limits_store_call_seconds_count", "default", "acquire"] >= len(answers)
    assert found["limits_store_state", "default"] == 0
    assert found["limits_resolver_kept",] == 2, "one in each worker"
    assert not any(label.isdigit() for _, *labels in found for label in labels), "no process is a label"


def test_an_outage_is_exported_while_it_lasts(tmp_path: Path) -> None:
    with redis_server() as server, site_with(tmp_path, {"KIND": "redis", "URL": server.url}) as url:
        assert get(f"{url}/allowed").split()[1] == "True"
        server.kill()
        for _ in range(30):
            with suppress(HTTPError):  # requests are blocked, which is no decision of a limit
                get(f"{url}/allowed")
        until(lambda: values(url).get(("limits_store_state", "default")) == 2)
        until(lambda: values(url).get(("limits_degraded_decisions_total", "block", "default"), 0) >= 20)
        server.start()
        until(lambda: get(f"{url}/allowed").split()[1] == "True")
        until(lambda: values(url).get(("limits_store_state", "default")) == 0)
