"""The pages of the Django admin; each module registers its own."""

from __future__ import annotations

from limits_app.admin import alerts, audit_log, candidates, emergency, pages, policies, pools, prices, resources
from limits_app.admin.blocking import LimitsUserAdminMixin

__all__ = ["LimitsUserAdminMixin"]
