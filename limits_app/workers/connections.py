"""Database connections of threads and processes in which no request begins or ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["tidied"]


@contextmanager
def tidied() -> Iterator[None]:
    """Close connections that are too old or unusable before and after, as Django does for a request.

    Costs nothing, and imports nothing, where Django's databases are not in use.
    """
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    if "django.db" in sys.modules:
        from django.conf import settings
        from django.db import close_old_connections

        if settings.configured:
            close_old_connections()
