"""gunicorn with gevent workers and the default store: requests that wait for a permit keep no other from its answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.servers.machine import HOST, free_ports

pytestmark = pytest.mark.product

ROOT = Path(__file__).parents[2]
SECONDS = 60
MIGRATE = (
    "import tests.integrations.gevent_site\n"
    "from django.core.management import call_command\n"
    "from limits_app import ResourceLimit, limits\n"
    "call_command('migrate', verbosity=0)\n"
    "limits.set_resource_limits('reports', [ResourceLimit('report', 1)])\n"
)


def get(url: str) -> str:
    """What the site answers."""
    with urlopen(url, timeout=SECONDS) as response:
        return str(response.read().decode())


CONFIGURATIONS = {
    "each_worker_imports": "",
    # Django itself needs to be imported after the patch.
    "preloaded": "from gevent import monkey\nmonkey.patch_all()\npreload_app = True\n",
}


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a site with two gevent workers."""
    environment = os.environ | {
        "SITE_DATABASE": str(tmp_path / "site.sqlite3"),
        "SITE_STATE": str(tmp_path / "state"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", MIGRATE], env=environment, cwd=ROOT, check=True, timeout=SECONDS)
    [port] = free_ports()
    command = ["-m", "gunicorn", "tests.integrations.gevent_site", "-b", f"{HOST}:{port}", "--workers", "2"]
    configuration = tmp_path / "gunicorn.conf.py"
    configuration.write_text(request.param)
    options = ["--worker-class", "gevent", "--log-level", "error", "--config", str(configuration)]
    server = subprocess.Popen([sys.executable, *command, *options], env=environment, cwd=ROOT)
    url, deadline = f"http://{HOST}:{port}", monotonic() + SECONDS
    try:
        while True:
            with suppress(URLError):
                if get(f"{url}/quick"):
                    break
            assert monotonic() < deadline
            assert server.poll() is None
            Event().wait(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(SECONDS)


def test_requests_that_wait_keep_no_other_waiting(site: str) -> None:
    with ThreadPoolExecutor(8) as executor:
        waiting = [executor.submit(get, f"{site}/hold") for _ in range(6)]
        quick = [get(f"{site}/quick") for _ in range(20)]
        assert sum(future.done() for future in waiting) < len(waiting), "the quick ones did not wait for them"
        held = [future.result(SECONDS) for future in waiting]
    assert {answer.split()[1] for answer in quick} == {"True"}
    assert all(answer.endswith("held") for answer in held)
