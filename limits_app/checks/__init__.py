"""System checks of the settings, the stores and the database; what they need is imported when they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.core.checks import CheckMessage


def check_settings(**options: Any) -> list[CheckMessage]:
    """Report every unknown key and bad value of `LIMITS`."""
    from limits_app.checks import settings

    return settings.check_settings()


def check_hazards(**options: Any) -> list[CheckMessage]:
    """Report settings that are valid but probably a mistake."""
    from limits_app.checks import settings

    return settings.check_hazards()


def check_deployment(**options: Any) -> list[CheckMessage]:
    """Report settings that are suitable for development only."""
    from limits_app.checks import settings

    return settings.check_deployment()


def check_stores(databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Check the stores and the database; only with the option `check --database`."""
    from limits_app.checks import stores

    return stores.check_stores(databases)


def check_audit_log(**options: Any) -> list[CheckMessage]:
    """Report an audit log that SQL can change; only with the option --deploy."""
    from limits_app.checks import stores

    return stores.check_audit_log()
