"""Which tests need a server, and which of them another product than Redis and PostgreSQL: the markers they get.

A test gets them by its fixtures and parameters, which name what it runs on; a module that starts something itself has
the marker in its own text.
"""

from __future__ import annotations

import re
from typing import Final

import pytest

__all__ = ["mark"]

_PRODUCT_FIXTURES: Final = frozenset({"cluster", "mariadb", "redis_62", "shared_site"})
_SERVER_FIXTURES: Final = frozenset({"on_redis", "postgres", "redis", "redis_binary"})
_PRODUCT_PARAMETERS: Final = re.compile(r"(?<![a-z])(cluster|mariadb|redis-6|sentinel)")
_SERVER_PARAMETERS: Final = re.compile(r"(?<![a-z])(postgres|redis)")


def mark(item: pytest.Item) -> None:
    """Add the markers `server` and `product` to a test that needs them."""
    fixtures = set(getattr(item, "fixturenames", ()))
    parameters = item.name.partition("[")[2]
    product = bool(fixtures & _PRODUCT_FIXTURES or _PRODUCT_PARAMETERS.search(parameters))
    if product and item.get_closest_marker("product") is None:
        item.add_marker("product")
    if product or fixtures & _SERVER_FIXTURES or _SERVER_PARAMETERS.search(parameters):
        item.add_marker("server")
