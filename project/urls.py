"""URLs of the demo site."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from django.urls import include, path

from project import views

admin.site.index_template = "admin/limits_app/index.html"  # shows the state of all limits

urlpatterns = [
    path("", views.index, name="index"),
    path("login/", LoginView.as_view(template_name="demo/login.html"), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("api/ping/", views.ping, name="ping"),
    path("api/aping/", views.aping, name="aping"),
    path("api/reports/<slug:name>/", views.report, name="report"),
    path("mail/", views.mail, name="mail"),
    path("reports/export/", views.export, name="export"),
    path("reports/stream/", views.stream, name="stream"),
    path("limits/api/", include("limits_app.api.urls")),
    path("limits/", include("limits_app.urls")),
    path("admin/", admin.site.urls),
    # Serves the static files of the admin with any server; only with DEBUG.
    *staticfiles_urlpatterns(),
]
