"""The demo site with the look of django-unfold."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - settings are what its names are
from project.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = ["unfold", *_APPS]
