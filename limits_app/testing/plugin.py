"""The pytest plugin: limits start afresh with each test of a site that has them.

Nothing is imported before it is needed, so the plugin is harmless where Django is not configured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from limits_app.testing.clock import FakeClock

_ISOLATED = "limits_isolated"
_MARKER = "limits_stores"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a project go without isolation."""
    parser.addini(_ISOLATED, "start each test with unused limits", type="bool", default=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{_MARKER}: the test uses the stores of the site's settings as they are")


@pytest.fixture(autouse=True)
def _fresh_limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Isolate a test, unless it wants the stores of the site; no thread writes to the database of a test."""
    if not _has_limits():
        yield
        return
    from limits_app.conf import test_runner
    from limits_app.testing.isolation import fresh_limits
    from limits_app.usage.writer import write_in_background

    write_in_background(False)
    if not request.config.getini(_ISOLATED) or request.node.get_closest_marker(_MARKER):
        with test_runner.ignored():
            yield
        return
    with fresh_limits():
        yield


@pytest.fixture
def limits_clock() -> Iterator[FakeClock]:
    """The clock of unused limits; its time changes only by `limits_clock.advance(seconds)`."""
    from limits_app.testing.isolation import freeze_limits

    with freeze_limits() as clock:
        yield clock


def _has_limits() -> bool:
    """Whether this process runs a site with limits."""
    if "django.apps" not in sys.modules:
        return False
    from django.apps import apps

    return apps.ready and apps.is_installed("limits_app")
