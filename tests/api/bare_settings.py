"""The settings of the tests, with every setting of REST framework as it is by default."""

from __future__ import annotations

from typing import Any

from project.settings import *  # noqa: F403

REST_FRAMEWORK: dict[str, Any] = {}
