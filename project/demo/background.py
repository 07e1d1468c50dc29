"""Gunicorn configuration of `make run`: each worker also does what cron or Celery does on other sites.

It rolls up usage and sends alerts.
"""

from __future__ import annotations

import logging
from threading import Thread
from time import sleep
from typing import Final

from django.db import DatabaseError, connections

__all__ = ["post_worker_init"]

_PAUSE_SECONDS: Final = 5

logger = logging.getLogger(__name__)


def post_worker_init(worker: object) -> None:
    """Start the thread of these jobs; gunicorn calls this when a worker is ready."""
    Thread(target=_work_repeatedly, name="demo-background", daemon=True).start()


def _work_repeatedly() -> None:
    from limits_app import alerts, limits  # needs Django to be set up, which is so in workers only

    while True:
        try:
            limits.roll_up()
            alerts.send()
        except DatabaseError:
            logger.exception("The roll-up of usage or the sending of alerts failed and will be repeated.")
        finally:
            connections.close_all()
        sleep(_PAUSE_SECONDS)
