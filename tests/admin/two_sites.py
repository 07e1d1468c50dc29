"""URLs of a site that has the pages of the app on two sites of the admin: the default one and `operations`."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.urls import path

from limits_app.admin import LimitsUserAdminMixin


class LimitedUserAdmin(LimitsUserAdminMixin, UserAdmin):
    """Users, with links about limits."""


operations = admin.AdminSite(name="operations")
for model, page in admin.site._registry.items():
    operations.register(model, LimitedUserAdmin if model is User else type(page))

urlpatterns = [path("admin/", admin.site.urls), path("internal/operations/", operations.urls)]
