"""Addresses of the demo site."""

from django.contrib import admin
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from django.urls import path

from project import views

urlpatterns = [
    path("", views.index, name="index"),
    path("api/ping/", views.ping, name="ping"),
    path("api/aping/", views.aping, name="aping"),
    path("reports/export/", views.export, name="export"),
    path("admin/", admin.site.urls),
    # Any server of the demo can then show the admin with its styles; it adds nothing when DEBUG is off.
    *staticfiles_urlpatterns(),
]
