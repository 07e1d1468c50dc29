"""System checks of the settings, the stores and the database."""

from __future__ import annotations

from limits_app.checks.settings import check_deployment, check_hazards, check_settings
from limits_app.checks.stores import check_audit_log, check_stores

__all__ = ["check_audit_log", "check_deployment", "check_hazards", "check_settings", "check_stores"]
