"""The demo site as careful sites serve it: whatever does not come from the site itself is not run and not shown."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - settings are what its names are
from project.settings import MIDDLEWARE as _MIDDLEWARE

MIDDLEWARE = ["tests.browser.policy.restrict", *_MIDDLEWARE]
