"""URLs that depend on the language of a request."""

from __future__ import annotations

from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.urls import path

urlpatterns = i18n_patterns(path("admin/", admin.site.urls))
