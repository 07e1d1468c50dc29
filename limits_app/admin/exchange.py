"""Import and export if they can be had: the admin works without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps

from limits_app.admin.large_lists import LargeListAdmin

__all__ = ["ExchangeAdmin"]

if not TYPE_CHECKING and apps.is_installed("import_export"):
    from limits_app.admin.exchanging import ExchangingAdmin as ExchangeAdmin
else:
    ExchangeAdmin = LargeListAdmin
