"""How gunicorn serves the demo for people: each worker also rolls usage up, which elsewhere cron or Celery does."""

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
    """Begin, as gunicorn asks when a worker is ready."""
    Thread(target=_roll_up_again_and_again, name="demo-usage", daemon=True).start()


def _roll_up_again_and_again() -> None:
    from limits_app import limits  # a worker has set Django up; whoever reads this as a configuration has not

    while True:
        try:
            limits.roll_up()
        except DatabaseError:
            logger.exception("Usage comes later.")
        finally:
            connections.close_all()
        sleep(_PAUSE_SECONDS)
