"""URLs of the REST API."""

from __future__ import annotations

from django.urls import include, path, re_path
from rest_framework.routers import SimpleRouter

from limits_app.api.views import configuration, state
from limits_app.api.views.base import NotFoundView, SchemaView

app_name = "limits_api"

_router = SimpleRouter(use_regex_path=False)
_router.register("resources", configuration.ResourceView)
_router.register("plans", configuration.PlanView)
_router.register("entities", configuration.EntityView)
_router.register("policies", configuration.PolicyView)
_router.register("pools", configuration.PoolView)
_router.register("endpoints", configuration.EndpointView)
_router.register("audit-events", configuration.AuditEventView)

_schema = SchemaView.as_view(
    custom_settings={
        "TITLE": "Limits",
        "DESCRIPTION": "Read and change rate limits, quotas and concurrency limits.",
        "VERSION": "1",
        "PREPROCESSING_HOOKS": ["limits_app.api.schema.only_this_api"],
        "POSTPROCESSING_HOOKS": [
            "drf_spectacular.hooks.postprocess_schema_enums",
            "limits_app.api.schema.without_other_fields",
        ],
        "SCHEMA_PATH_PREFIX": "",
    }
)

_v1 = [
    *_router.urls,
    path("audit-events/<int:pk>/revert/", configuration.RevertView.as_view(), name="revert"),
    path("boosts/", state.BoostView.as_view(), name="boost"),
    path("candidates/", state.CandidateView.as_view(), name="candidate-list"),
    path("denials/", state.DenialView.as_view(), name="denial-list"),
    path("emergency/", state.EmergencyView.as_view(), name="emergency"),
    path("explain/", state.ExplainView.as_view(), name="explain"),
    path("me/", state.MeView.as_view(), name="me"),
    path("resets/", state.ResetView.as_view(), name="reset"),
    path("schema/", _schema, name="schema"),
    path("shadow-refusals/", state.ShadowRefusalView.as_view(), name="shadow-refusal-list"),
    path("status/", state.StatusView.as_view(), name="status"),
    path("top-ups/", state.TopUpView.as_view(), name="top-up"),
    path("usage/", state.UsageView.as_view(), name="usage"),
    re_path(r"[\s\S]*/\Z", NotFoundView.as_view()),
]

urlpatterns = [path("v1/", include(_v1))]
