"""The page for users: `path("limits/", include("limits_app.urls"))`."""

from django.urls import path

from limits_app.views import own_limits

app_name = "limits_app"
urlpatterns = [path("", own_limits, name="own_limits")]
