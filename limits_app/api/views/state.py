"""Live state: what is used and why, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import chain
from typing import Any, Final, cast

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app import services
from limits_app.api import permissions
from limits_app.api.permissions import who
from limits_app.api.problems import WrongQuery
from limits_app.api.serializers import configuration, queries, state
from limits_app.api.serializers.fields import said
from limits_app.api.views.base import ApiView, ListView
from limits_app.audit import acting
from limits_app.core.amounts import Amount
from limits_app.core.errors import StaleConfiguration
from limits_app.core.limits import Blocked
from limits_app.core.outcome import Stats
from limits_app.integrations.identity import identify
from limits_app.models import Bucket, Denial, Policy, Resource, UsageSnapshot
from limits_app.models.limit_rules import amount_of
from limits_app.services import definitions
from limits_app.services.usage import uses
from limits_app.usage import Use, denied

__all__ = [
    "BoostView",
    "DenialView",
    "ExplainView",
    "MeView",
    "ResetView",
    "ShadowRefusalView",
    "StatusView",
    "TopUpView",
    "UsageView",
]


_ABOUT_DENIALS: Final = ("resource", "entity", "key", "since", "until")


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
        _check_keys(requested or (), explanation)
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


class _FreshListView(ListView):
    """Lists what no cache keeps."""

    tagged = False

    def told(self, found: Any, tell: Callable[[Any], Any]) -> Response:
        """The page of what was found that is asked for, each as `tell` has it."""
        page = self.paginate_queryset(found)
        return _fresh(self.get_paginated_response([tell(one) for one in page or ()]))


class UsageView(_FreshListView):
    """What was used."""

    permission_classes = (permissions.Permission,)
    permission = permissions.USAGE
    queryset = UsageSnapshot.objects.all()
    serializer_class = state.UseSerializer
    query = queries.UsageQuery

    @extend_schema(responses=state.UseSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read what was admitted and refused, as of the last roll-up; the largest use first, in the latest period."""
        asked = queries.read(self.query, request.query_params)
        found = uses(**{name: value for name, value in asked.items() if name not in self.query.beside})
        return self.told(found, Use.as_dict)


class DenialView(_FreshListView):
    """Who was refused."""

    permission_classes = (permissions.Permission,)
    permission = permissions.USAGE
    queryset = Denial.objects.all()
    serializer_class = state.DenialSerializer
    query = queries.DenialQuery

    @extend_schema(responses=state.DenialSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read which limit refused whom, minute by minute; the latest first, and in it who was refused most."""
        asked = queries.read(self.query, request.query_params)
        found = denied(**{name: asked.get(name) for name in _ABOUT_DENIALS})
        return self.told(found, self.get_serializer().to_representation)


class MeView(_FreshListView):
    """A caller's own limits and usage."""

    permission_classes = (permissions.Callers,)
    queryset = Resource.objects.all()
    serializer_class = state.MineSerializer
    query = queries.MeQuery

    @extend_schema(responses=state.MineSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read the limits of the resources that administrators know, and what was used, for whom this request is."""
        entity = identify(request)  # the user is known only inside the view
        used = _used(entity, queries.read(self.query, request.query_params))

        def mine(one: Resource) -> dict[str, Any]:
            state, usage = _state(one.name, entity), used.get(one.name, {})
            return {"resource": one.name, "entity": entity, "limits": state, "usage": usage}

        return self.told(self.rows(request), mine)


class ResetView(ApiView):
    """Forgetting what was used."""

    permission_classes = (permissions.Permission,)
    permission = permissions.RESET

    @extend_schema(request=configuration.ResetSerializer, responses=configuration.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Forget what an entity has used of a resource; permits stay with their holders."""
        return Response({"done": services.reset(**said(configuration.ResetSerializer, request.data), **who(request))})


class TopUpView(ApiView):
    """Giving credit."""

    permission_classes = (permissions.Permission,)
    permission = permissions.TOP_UP

    @extend_schema(request=configuration.TopUpSerializer, responses=configuration.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Give an entity credit of a limit, as much as fits into it."""
        asked = said(configuration.TopUpSerializer, request.data)
        amount = amount_of(asked.pop("amount"))
        return Response({"done": services.top_up(**asked, amount=amount, **who(request))})


class BoostView(ApiView):
    """Giving an entity other limits for a while."""

    permission_classes = (permissions.Permission,)
    permission = permissions.BOOST
    tagged = True

    @extend_schema(request=configuration.BoostSerializer, responses={201: configuration.PolicySerializer})
    def post(self, request: Request) -> Response:
        """Grant a boost, which is a policy with dates; limits that are not named stay as they are."""
        asked = said(configuration.BoostSerializer, request.data)
        limits = [row.definition() for row in definitions.read_limits(asked["limits"])]
        if asked["resource"] is not None:
            definitions.check_stored(Resource, asked["resource"], ("resource",))
        with acting(**who(request)):  # for the reason that the boost has
            policy = services.grant_boost(asked["entity"], asked["resource"], limits, asked["until"], asked["reason"])
        granted = Policy.objects.using(policy._state.db).prefetch_related("limits").get(pk=policy.pk)
        return self.answered(request, configuration.PolicySerializer(granted).data, 201)


def _now(data: Any) -> Response:
    """Live state, which no cache keeps."""
    return _fresh(Response(data))


def _fresh(response: Response) -> Response:
    response["Cache-Control"] = "no-store"
    return response


def _amount(text: str) -> tuple[str, Amount]:
    key, _colon, amount = text.rpartition(":")
    return key, cast(Amount, amount_of(Decimal(amount)))


def _check_keys(requested: Iterable[str], explanation: services.Explanation) -> None:
    """Refuse keys of no limit, which would be admitted because nobody limits them; where nothing holds, all are."""
    members = () if explanation.pool is None else explanation.pool.members
    decided = (*explanation.outcome.violations, *explanation.outcome.passed)
    known = {status.key for status in (*decided, *chain.from_iterable(member.limits for member in members))}
    known |= {limit.key for link in explanation.chain for one in link.verdicts for limit in one.candidate.limits}
    known |= {limit.held.limit.key for link in explanation.chain for limit in link.limits}
    known.discard(Blocked.key)
    unknown = [key for key in requested if key not in known]
    if known and unknown:
        told = {"keys": ", ".join(unknown), "known": ", ".join(sorted(known))}
        raise WrongQuery({"requested": [_("No limit has the key %(keys)s; those here have %(known)s.") % told]})


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
