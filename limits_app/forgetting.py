"""What this process remembers of limits, and when that is forgotten."""

from __future__ import annotations

from limits_app.alerts import recorder
from limits_app.engine import forget_warnings
from limits_app.models.own_queries import failures
from limits_app.policies import balancers, resolver
from limits_app.services.near_limits import thresholds
from limits_app.services.shadow import forget_shadow_refusals
from limits_app.services.url_matching import endpoints
from limits_app.stores import registry
from limits_app.usage.denial_counter import denials
from limits_app.usage.evaluation_counter import evaluations


def forget_compiled() -> None:
    """Drop everything that was compiled from settings, stores and rows, which may be others now."""
    registry.forget_stores()
    resolver.clear()
    endpoints.clear()


def forget_use() -> None:
    """Drop this as well, and everything that depends on how limits were used."""
    forget_compiled()
    denials.clear()
    evaluations.clear()
    recorder.clear()
    balancers.clear()
    thresholds.clear()
    forget_shadow_refusals()
    forget_warnings()
    failures.clear()
