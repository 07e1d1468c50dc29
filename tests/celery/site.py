"""A site with a broker, whose workers are processes that a test may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

from tests.servers.machine import HOST
from tests.servers.redis import redis_server, until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60
"""Seconds after which what does not end counts as broken."""


class CelerySite:
    """A site; `celery` sends tasks to it, and `diary` is what they say."""

    def __init__(
        self, server: str, directory: Path, *, broker: str | None = None, visibility_seconds: int = 3600
    ) -> None:
        self.server = server
        self.directory = directory
        self.environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.celery.settings",
            "LIMITS_DEMO_DATABASE": str(directory / "db.sqlite3"),
            "LIMITS_TEST_REDIS": server,
            "LIMITS_TEST_BROKER": broker or f"{server}/0",
            "LIMITS_TEST_VISIBILITY": str(visibility_seconds),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(directory),  # killed workers leave something there
        }
        self.celery = Celery(
            "sender", broker=broker or f"{server}/0", backend=f"{server}/2", broker_connection_retry_on_startup=True
        )
        self.diary = Redis.from_url(f"{server}/3", decode_responses=True)
        self._workers: list[subprocess.Popen[bytes]] = []

    def prepare(self) -> None:
        """Make the tables and limits that its tasks need."""
        subprocess.run([sys.executable, "-m", "tests.celery.prepare"], cwd=ROOT, env=self.environment, check=True)

    def start_worker(self, processes: int = 4, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker with so many processes of one group, or greenlets, and with more options of its command."""
        name = f"worker{len(self._workers)}"
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.app", "worker", f"--concurrency={processes}"]
        quick = [f"--hostname={name}@localhost", "--loglevel=INFO", "--without-gossip", "--without-mingle", *options]
        with (self.directory / f"{name}.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, *quick],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def until_ready(self) -> None:
        """Wait until all workers that run can take tasks."""
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                log = self.directory / f"worker{number}.log"
                until(lambda log=log: " ready." in log.read_text(), f"no worker: {log}")  # type: ignore[misc]

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """End a worker with all its processes, at once."""
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(PATIENCE)

    def send(self, name: str, *args: Any, **options: Any) -> Any:
        """Send a task, by the name of its function."""
        return self.celery.send_task(f"tests.celery.tasks.{name}", args, **options)

    def lines(self, page: str) -> list[tuple[str, int]]:
        """What tasks have written on a page, with the microsecond of each line."""
        found = self.diary.lrange(page, 0, -1)
        return [(text, int(moment)) for text, moment in (line.rsplit(" ", 1) for line in found)]

    def log(self) -> str:
        """What all workers have said."""
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.directory.glob("*.log")))

    def stop(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self.kill(worker)
        results = self.celery.backend.result_consumer
        results.stop()
        results.subscribed_to.clear()  # or a result that is collected later asks a server that is gone
        self.celery.close()
        self.diary.close()


@contextmanager
def celery_site(**options: Any) -> Iterator[CelerySite]:
    """A site on a Redis server of its own, without tables, limits and workers."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-")))
        site = CelerySite(f"redis://{HOST}:{server.port}", directory, **options)
        stack.callback(site.stop)
        yield site
