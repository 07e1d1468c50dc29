"""Gunicorn configuration of `make run`: each worker also rolls up usage, as cron or Celery does on other sites."""

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
    """Start the thread that rolls up usage; gunicorn calls this when a worker is ready."""
    Thread(target=_roll_up_repeatedly, name="demo-usage", daemon=True).start()


def _roll_up_repeatedly() -> None:
    from limits_app import limits  # needs Django to be set up, which is so in workers only

    while True:
        try:
            limits.roll_up()
        except DatabaseError:
            logger.exception("The roll-up of usage failed and will be repeated.")
        finally:
            connections.close_all()
        sleep(_PAUSE_SECONDS)
