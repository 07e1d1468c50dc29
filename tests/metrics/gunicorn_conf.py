"""The configuration of gunicorn that docs/metrics.md shows."""

from __future__ import annotations

from typing import Any

from prometheus_client import multiprocess


def child_exit(server: Any, worker: Any) -> None:
    """Remove the gauges of a worker that has ended."""
    multiprocess.mark_process_dead(worker.pid)
