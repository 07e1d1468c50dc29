"""URLs of the REST API."""

from __future__ import annotations

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from limits_app.api import decisions, live_views, views
from limits_app.api.base import IndexView, NotFoundView, SchemaView
from limits_app.models import registered

app_name = "limits_api"

_router = SimpleRouter(use_regex_path=False)
for _view in (
    views.ResourceView,
    views.PlanView,
    views.EntityView,
    views.PolicyView,
    views.PoolView,
    views.PriceView,
    views.EndpointView,
    views.AlertRuleView,
):
    _router.register(registered(_view.queryset.model).section.replace("_", "-"), _view)
_router.register("audit-events", views.AuditEventView)

_readable = {prefix: f"{name}-list" for prefix, _, name in _router.registry} | {
    "candidates": "candidate-list",
    "denials": "denial-list",
    "emergency": "emergency",
    "me": "me",
    "schema": "schema",
    "shadow-refusals": "shadow-refusal-list",
    "usage": "usage",
}

_v1 = [
    path("", IndexView.as_view(names=_readable), name="index"),
    *_router.urls,
    path("audit-events/<int:pk>/revert/", views.RevertView.as_view(), name="revert"),
    path("acquire/", decisions.AcquireView.as_view(), name="acquire"),
    path("boosts/", live_views.BoostView.as_view(), name="boost"),
    path("cancel/", decisions.CancelView.as_view(), name="cancel"),
    path("candidates/", live_views.CandidateView.as_view(), name="candidate-list"),
    path("denials/", live_views.DenialView.as_view(), name="denial-list"),
    path("emergency/", live_views.EmergencyView.as_view(), name="emergency"),
    path("explain/", live_views.ExplainView.as_view(), name="explain"),
    path("extend/", decisions.ExtendView.as_view(), name="extend"),
    path("me/", live_views.MeView.as_view(), name="me"),
    path("renew/", decisions.RenewView.as_view(), name="renew"),
    path("resets/", live_views.ResetView.as_view(), name="reset"),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("settle/", decisions.SettleView.as_view(), name="settle"),
    path("shadow-refusals/", live_views.ShadowRefusalView.as_view(), name="shadow-refusal-list"),
    path("status/", live_views.StatusView.as_view(), name="status"),
    path("top-ups/", live_views.TopUpView.as_view(), name="top-up"),
    path("spend/", live_views.SpendView.as_view(), name="spend"),
    path("usage/", live_views.UsageView.as_view(), name="usage"),
    re_path(r"[\s\S]*/\Z", NotFoundView.as_view()),
]

urlpatterns = [path("v1/", include(_v1))]
