"""Checks of what the app needs of the site: its apps, its middleware and log-ins, and a template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import import_string

from limits_app.integrations.refusals import TEMPLATE
from limits_app.services.site_views import MIDDLEWARE

_APPS: Final = ("django.contrib.auth", "django.contrib.contenttypes")
_CORS: Final = "corsheaders.middleware.CorsMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


def middleware_order() -> Iterator[CheckMessage]:
    """Report LimitsMiddleware before AuthenticationMiddleware."""
    order = [name for name in settings.MIDDLEWARE if name in (MIDDLEWARE, _AUTHENTICATION)]
    if order == [MIDDLEWARE, _AUTHENTICATION]:
        yield Warning(
            "LimitsMiddleware comes before AuthenticationMiddleware, so it does not know the user",
            hint="Put it after AuthenticationMiddleware; otherwise all clients are limited by address.",
            id="limits_app.W043",
        )


def cors_order() -> Iterator[CheckMessage]:
    """Report LimitsMiddleware before the middleware of django-cors-headers."""
    order = [name for name in settings.MIDDLEWARE if name in (MIDDLEWARE, _CORS)]
    if order == [MIDDLEWARE, _CORS]:
        yield Warning(
            "LimitsMiddleware comes before CorsMiddleware, so URL rules count CORS preflights",
            hint="Put CorsMiddleware first: it answers preflights, and adds its headers to rejections too.",
            id="limits_app.W070",
        )


def missing_apps() -> Iterator[CheckMessage]:
    """Report missing apps of Django."""
    if missing := [name for name in _APPS if not apps.is_installed(name)]:
        yield Error(
            f"limits_app needs {' and '.join(missing)}, which INSTALLED_APPS does not contain",
            hint="Add what is missing to INSTALLED_APPS, before limits_app: plans belong to groups of users, and the "
            "admin and the API have permissions. No middleware, session or admin is required.",
            id="limits_app.E075",
        )


def missing_templates() -> Iterator[CheckMessage]:
    """Report a missing page of rejections."""
    try:
        get_template(TEMPLATE)
    except TemplateDoesNotExist:
        yield Warning(
            f"no template engine finds {TEMPLATE}, the page of rejections for browsers",
            hint="Add DjangoTemplates with APP_DIRS to TEMPLATES; until then browsers get problem details as JSON. "
            "Silence this check for a site without browsers.",
            id="limits_app.W075",
        )


def log_in_limits() -> Iterator[CheckMessage]:
    """Report log-in throttling that other backends or a missing middleware weaken."""
    backends = [*settings.AUTHENTICATION_BACKENDS] if apps.is_installed("django.contrib.auth") else []
    limiting = next(filter(_limits_log_ins, backends), None)
    if limiting is None:
        return
    if limiting != backends[0]:
        yield Warning(
            f"{backends[0]!r} comes before {limiting!r} in AUTHENTICATION_BACKENDS, so it checks passwords without a "
            "limit",
            hint=f"Put {limiting!r} first.",
            id="limits_app.W076",
        )
    if MIDDLEWARE not in settings.MIDDLEWARE:
        yield Warning(
            "log-ins are limited without LimitsMiddleware, so rejected ones look like wrong passwords",
            hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE: it answers them with 429, and counts attempts that end in an "
            "error of another backend.",
            id="limits_app.W077",
        )


def _limits_log_ins(path: str) -> bool:
    from limits_app.integrations.login import LoginLimitBackend

    try:
        backend = import_string(path)
    except ImportError:  # Django reports it at the first log-in
        return False
    return isinstance(backend, type) and issubclass(backend, LoginLimitBackend)
