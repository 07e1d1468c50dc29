"""Wiring, and nothing else."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import Tags, register
from django.core.signals import request_finished, setting_changed
from django.utils.translation import gettext_lazy as _

from limits_app.acquiring import AtFork

if TYPE_CHECKING:
    from limits_app.engine import LeaseHolder


class LimitsConfig(AppConfig):
    """Limits that administrators set and every process obeys."""

    name = "limits_app"
    label = "limits_app"
    verbose_name = _("Limits")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the receivers and register the checks."""
        from limits_app import alerts, checks, conf, metrics, models, signals
        from limits_app.engine import Runtime, install
        from limits_app.models import namespaces, plan, recording
        from limits_app.policies import advance_version
        from limits_app.stores import registry

        register(checks.check_settings, "limits_app")
        register(checks.check_hazards, "limits_app")
        register(checks.check_deployment, "limits_app", deploy=True)
        register(checks.check_stores, "limits_app", Tags.database)
        register(checks.check_audit_log, "limits_app", deploy=True)
        recording.watch(models.CONFIGURATION)
        plan.watch_groups()
        signals.limits_changed.connect(advance_version, dispatch_uid="limits_app.version")
        signals.test_began.connect(_test_began, dispatch_uid="limits_app.test")
        _JOBS_AT_FORK.after_fork()
        setting_changed.connect(_settings_changed, dispatch_uid="limits_app.settings")
        install(
            Runtime(
                is_enabled=lambda: conf.get(conf.ENABLED),
                unpriced_is_free=lambda: conf.get(conf.UNPRICED) is conf.Unpriced.FREE,
                unknown_keys_raise=lambda: conf.get(conf.UNKNOWN_KEYS) is conf.UnknownKeys.RAISE,
                currencies=lambda: conf.get(conf.CURRENCIES),
                priorities=lambda: conf.get(conf.PRIORITIES),
                namespace=namespaces.current_keys,
                secrets=_secrets,
                lease_lost=_lease_lost,
                open_store=registry.store_of_mode,
            )
        )
        alerts.connect()
        metrics.install()


@cache
def _secrets() -> tuple[str | bytes, ...]:
    """The secrets of the site; each new client needs the first one, and Django takes a while to look for a setting."""
    return settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS


def _settings_changed(*, setting: str, **details: object) -> None:
    """Tests that override LIMITS or CACHES mean other stores: nothing that was compiled for the old ones is right."""
    from limits_app import alerts
    from limits_app.forgetting import forget_compiled
    from limits_app.models import namespaces, users

    _await_work()
    if setting in {"DATABASE_ROUTERS", "LIMITS", "TENANT_APPS", "TENANT_TYPES"}:
        namespaces.forget_sources()
    if setting in {"CACHES", "LIMITS"}:
        forget_compiled()
        alerts.connect()
    if setting in {"SECRET_KEY", "SECRET_KEY_FALLBACKS"}:
        _secrets.cache_clear()
    if setting == "AUTH_USER_MODEL":
        users.forget_user_model()


def _test_began(**details: object) -> None:
    from limits_app.forgetting import forget_use

    forget_use()


def _await_work() -> None:
    """Start the background jobs after the first request or task of this process."""
    for signal in _ends_of_work():
        signal.connect(_start_jobs, dispatch_uid="limits_app.jobs")


def _start_jobs(**details: object) -> None:
    """A process that answers requests or runs tasks may roll up and prune in the background."""
    from limits_app.services.background import jobs

    jobs.start()
    for signal in _ends_of_work():
        signal.disconnect(dispatch_uid="limits_app.jobs")


def _ends_of_work() -> list[Any]:
    signals = sys.modules.get("celery.signals")
    return [request_finished] if signals is None else [request_finished, signals.task_postrun]


_JOBS_AT_FORK: Final = AtFork(_await_work)
"""A child starts its own jobs."""


def _lease_lost(acquisition: LeaseHolder) -> None:
    from limits_app import signals

    signals.lease_lost.send_robust(sender=None, claim=acquisition)
