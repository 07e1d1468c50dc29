"""Live state: what is used and why, and what can be done about it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app import services
from limits_app.api import permissions
from limits_app.api.auditing import SOURCE, actor_of, changing
from limits_app.api.serializers import queries, state
from limits_app.api.serializers.policies import PolicySerializer, definition_of
from limits_app.api.serializers.strict import StrictSerializer
from limits_app.api.views.base import ApiView, ListView
from limits_app.core.amounts import Amount
from limits_app.core.errors import StaleConfiguration
from limits_app.core.stats import Stats
from limits_app.integrations.drf.throttle import http
from limits_app.integrations.request_limits import limits_of
from limits_app.models import Bucket, Policy, Resource, UsageSnapshot
from limits_app.models.limit_columns import amount_of
from limits_app.services.usage import uses

__all__ = [
    "BoostView",
    "ExplainView",
    "MeView",
    "ResetView",
    "ShadowRefusalView",
    "StatusView",
    "TopUpView",
    "UsageView",
]


class StatusView(ApiView):
    """What is used and left."""

    permission_classes = (permissions.Permission,)
    permission = "limits_app.view_policy"
    query = queries.StatusQuery

    @extend_schema(responses=state.StatusSerializer)
    def get(self, request: Request) -> Response:
        """Read the state of an entity on a resource; without one, of the site itself and of the whole resource."""
        asked = queries.read(self.query, request.query_params)
        return _now(services.status(asked["resource"], entity=asked.get("entity")).as_dict())


class ExplainView(ApiView):
    """Why a request would be admitted or refused."""

    permission_classes = (permissions.Permission,)
    permission = "limits_app.view_policy"
    query = queries.ExplainQuery

    @extend_schema(responses=state.ExplanationSerializer)
    def get(self, request: Request) -> Response:
        """Explain what would be decided now; consumes nothing."""
        asked = queries.read(self.query, request.query_params)
        requested = dict(_amount(one) for one in asked["requested"]) if "requested" in asked else None
        explanation = services.explain(asked["resource"], entity=asked.get("entity"), requested=requested)
        return _now({**explanation.as_dict(), "text": explanation.text()})


class ShadowRefusalView(ApiView):
    """What policies in the shadow would have refused."""

    permission_classes = (permissions.Permission,)
    permission = "limits_app.view_policy"

    @extend_schema(responses=state.ShadowRefusalSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Count them, as far as the process that answers has seen them."""
        counted = services.shadow_refusals().items()
        return _now([{"resource": name, "key": key, "count": n} for name, by in counted for key, n in by.items()])


class UsageView(ListView):
    """What was used."""

    permission_classes = (permissions.Permission,)
    permission = permissions.USAGE
    queryset = UsageSnapshot.objects.all()
    serializer_class = state.UseSerializer
    query = queries.UsageQuery
    tagged = False

    @extend_schema(responses=state.UseSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read what was admitted and refused, as of the last roll-up; the largest use first, in the latest period."""
        asked = queries.read(self.query, request.query_params)
        found: Any = uses(**{name: value for name, value in asked.items() if name not in self.query.beside})
        page = self.paginate_queryset(found)
        return _fresh(self.get_paginated_response([use.as_dict() for use in page or ()]))


class MeView(ListView):
    """A caller's own limits and usage."""

    permission_classes = (permissions.Callers,)
    queryset = Resource.objects.all()
    serializer_class = state.MineSerializer
    query = queries.MeQuery
    tagged = False

    @extend_schema(responses=state.MineSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read the limits of the resources that administrators know, and what was used, for whom this request is."""
        entity = limits_of(http(request)).entity
        page = self.paginate_queryset(self.rows(request))
        used = _used(entity, queries.read(self.query, request.query_params))
        mine = [
            {
                "resource": one.name,
                "entity": entity,
                "limits": _state(one.name, entity),
                "usage": used.get(one.name, {}),
            }
            for one in page or ()
        ]
        return _fresh(self.get_paginated_response(mine))


class ResetView(ApiView):
    """Forgetting what was used."""

    permission_classes = (permissions.Permission,)
    permission = permissions.RESET

    @extend_schema(request=state.ResetSerializer, responses=state.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Forget what an entity has used of a resource; permits stay with their holders."""
        return Response({"done": services.reset(**_said(state.ResetSerializer, request), **_who(request))})


class TopUpView(ApiView):
    """Giving credit."""

    permission_classes = (permissions.Permission,)
    permission = permissions.TOP_UP

    @extend_schema(request=state.TopUpSerializer, responses=state.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Give an entity credit of a limit, as much as fits into it."""
        said = _said(state.TopUpSerializer, request)
        amount = amount_of(said.pop("amount"))
        return Response({"done": services.top_up(**said, amount=amount, **_who(request))})


class BoostView(ApiView):
    """Giving an entity other limits for a while."""

    permission_classes = (permissions.Permission,)
    permission = permissions.BOOST

    @extend_schema(request=state.BoostSerializer, responses={201: PolicySerializer})
    def post(self, request: Request) -> Response:
        """Grant a boost, which is a policy with dates; limits that are not named stay as they are."""
        said = _said(state.BoostSerializer, request)
        limits = [definition_of(given, number) for number, given in enumerate(said["limits"])]
        with changing(request):
            policy = services.grant_boost(said["entity"], said["resource"], limits, said["until"], said["reason"])
        return Response(PolicySerializer(Policy.objects.get(pk=policy.pk)).data, status=201)


def _now(data: Any) -> Response:
    """Live state, which no cache keeps."""
    return _fresh(Response(data))


def _fresh(response: Response) -> Response:
    response["Cache-Control"] = "no-store"
    return response


def _said(serializer: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """The body, checked."""
    said = serializer(data=request.data)
    said.is_valid(raise_exception=True)
    return cast(dict[str, Any], said.validated_data)


def _who(request: Request) -> dict[str, str]:
    return {"actor": actor_of(request), "source": SOURCE}


def _amount(said: str) -> tuple[str, Amount]:
    key, _, amount = said.rpartition(":")
    return key, cast(Amount, amount_of(Decimal(amount)))


def _used(entity: str | None, asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What an entity (None: the site itself) has used in the time that is asked for, by resource and limit."""
    time = {name: asked[name] for name in ("period", "since", "until") if name in asked}
    found: dict[str, dict[str, Any]] = {}
    for use in uses(entity=entity or "", by="resource", **time)[:]:
        if use.bucket == Bucket.ENTITY:  # members of pools have names that entities may have too
            used = {"admitted": use.admitted, "refused": use.refused, "refused_share": use.refused_share}
            found.setdefault(use.resource or "", {})[use.key] = used
    return found


def _state(resource: str, entity: str | None) -> dict[str, Stats]:
    """The state of one scope; with no entity that of the site itself alone."""
    while True:
        try:
            return services.limit_set(resource, entity).get_stats()
        except StaleConfiguration:
            continue
