"""Whether this process runs the tests of a project, and which of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.conf import settings

from limits_app import conf

_MAIL: Final = "django.core.mail"
_BACKEND: Final = "django.core.mail.backends.locmem.EmailBackend"
_HOST: Final = "testserver"


class _Runner:
    """What is known of the test runner of this process."""

    def __init__(self) -> None:
        self.detected = False
        self.ignored = 0
        """The number of blocks of `ignored` that run."""


_RUNNER: Final = _Runner()


def current_test() -> object | None:
    """Return an object that identifies the running test; None outside of a test runner.

    Django's runner and pytest-django set up a test environment, which has three public effects: "testserver" is in
    ALLOWED_HOSTS, the e-mail backend keeps messages in memory, and `mail.outbox` exists. One of them alone may be part
    of a site. Once all were there, a test may override the settings; the outbox is removed when the runner ends.
    Each test of Django's test cases has its own outbox, which identifies the test.
    """
    outbox: object | None = getattr(sys.modules.get(_MAIL), "outbox", None)
    if outbox is None:
        _RUNNER.detected = False
        return None
    if _RUNNER.ignored or not conf.get(conf.TESTING):
        return None
    _RUNNER.detected = _RUNNER.detected or (_HOST in settings.ALLOWED_HOSTS and _keeps_mail())
    return outbox if _RUNNER.detected else None


@contextmanager
def ignored() -> Iterator[None]:
    """Detect no test runner in the block, for tests of the stores themselves."""
    _RUNNER.ignored += 1
    try:
        yield
    finally:
        _RUNNER.ignored -= 1


def _keeps_mail() -> bool:
    """Whether all e-mail is kept in memory; Django 6.1 has a setting of several backends."""
    mailers: dict[str, dict[str, object]] | None = getattr(settings, "MAILERS", None)
    backends = [settings.EMAIL_BACKEND] if mailers is None else [mailer.get("BACKEND") for mailer in mailers.values()]
    return all(backend == _BACKEND for backend in backends)
