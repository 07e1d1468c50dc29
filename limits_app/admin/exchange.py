"""Import and export if they can be had: the admin works without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps

from limits_app.admin.changelists import LargeListAdmin

if not TYPE_CHECKING and apps.is_installed("import_export"):
    from limits_app.admin.imports_exports import ImportExportAdmin as ExchangeAdmin
else:
    ExchangeAdmin = LargeListAdmin
