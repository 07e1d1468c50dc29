"""Views for status, explanations, usage, rejections, resets, top-ups and boosts."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar, Final, cast

from django.utils.translation import gettext as _
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app import services
from limits_app.api import live_serializers as live
from limits_app.api import permissions, queries, serializers
from limits_app.api.base import ApiView, ListView
from limits_app.api.fields import validated
from limits_app.api.permissions import changing, check, who
from limits_app.api.problems import WrongQuery
from limits_app.api.schema import extend_schema
from limits_app.audit import acting
from limits_app.engine import Amount
from limits_app.engine.errors import InvalidRequest, StaleConfiguration
from limits_app.engine.outcome import Stats
from limits_app.integrations.identity import identify
from limits_app.integrations.request import limits_of
from limits_app.models import BucketKind, Denial, Policy, Resource, UsageSnapshot
from limits_app.models.limit_rules import amount_of
from limits_app.services import definitions
from limits_app.services.amounts import known_amounts
from limits_app.services.candidates import policy_of_id
from limits_app.services.costs import Spend
from limits_app.services.rejections import explained
from limits_app.services.rights import Action, may, to_create_entity, to_replace_candidate
from limits_app.services.usage import spend, uses
from limits_app.usage.reading import Use, denied

_DENIAL_FILTERS: Final = ("resource", "entity", "key", "since", "until", "request_id")


class StatusView(ApiView):
    """Current usage of the limits of a resource."""

    rights: ClassVar = {"GET": (Action.VIEW_LIMITS,)}
    query = queries.StatusQuery

    @extend_schema(responses=live.StatusSerializer)
    def get(self, request: Request) -> Response:
        """Read the state of an entity on a resource; without an entity, of the site itself and the whole resource."""
        parameters = queries.read(self.query, request.query_params)
        return Response(services.status(**parameters).as_dict())


class ExplainView(ApiView):
    """Why a request would be allowed or rejected."""

    rights: ClassVar = {"GET": (Action.VIEW_LIMITS,)}
    query = queries.ExplainQuery

    @extend_schema(responses=live.ExplanationSerializer)
    def get(self, request: Request) -> Response:
        """Explain the decision about a request without consuming anything."""
        parameters = queries.read(self.query, request.query_params)
        if (requested := parameters.pop("requested", None)) is not None:
            scope = (parameters["resource"], parameters.get("entity"))
            try:
                requested = known_amounts(*scope, dict(map(_amount, requested)), parameters.get("plan"))
            except InvalidRequest as error:
                raise WrongQuery({"requested": [str(error)]}) from error
        explanation = services.explain(**parameters, requested=requested)
        return Response({**explanation.as_dict(), "text": explanation.text()})


class CandidateView(ApiView):
    """Candidates of policies."""

    rights: ClassVar = {
        "GET": (Action.VIEW_CANDIDATES,),
        "POST": (Action.SET_CANDIDATE, Action.DECIDE_CANDIDATE),
    }

    @extend_schema(responses=live.CandidateReportSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List candidates, and how many requests each evaluated and would have rejected."""
        return Response([candidate.as_dict() for candidate in services.candidates()])

    @extend_schema(request=live.CandidateChangeSerializer, responses=live.CandidateReportSerializer(many=True))
    def post(self, request: Request) -> Response:
        """Set, promote, revert or discard the candidate of a policy."""
        change = validated(live.CandidateChangeSerializer, request.data)
        policy = policy_of_id(change.pop("policy"))
        action = _CANDIDATE_ACTIONS.get(change.pop("action"))
        if action is None:
            raise ValidationError({"action": [_("Must be set, promote, revert or discard.")]})
        if (action is services.set_candidate) != ("limits" in change):
            raise ValidationError({"limits": [_("Required for action “set”; not allowed for other actions.")]})
        is_set = action is services.set_candidate
        with changing(request):
            if is_set:
                check(request, Action.SET_CANDIDATE, *to_replace_candidate(policy))
            else:
                check(request, Action.DECIDE_CANDIDATE)
            action(policy, **change)
        all_visible = may(request.user, Action.VIEW_CANDIDATES)
        return Response(
            [
                candidate.as_dict()
                for candidate in services.candidates()
                if all_visible or candidate.policy_id == policy.pk
            ]
        )


_CANDIDATE_ACTIONS: Final[dict[str, Callable[..., object]]] = {
    "set": services.set_candidate,
    "promote": services.promote_candidate,
    "revert": services.revert_candidate,
    "discard": services.discard_candidate,
}


class EmergencyView(ApiView):
    """The emergency switch."""

    rights: ClassVar = {"GET": (Action.VIEW_EMERGENCY,), "PUT": (Action.SET_EMERGENCY,)}

    @extend_schema(responses=live.EmergencySerializer)
    def get(self, request: Request) -> Response:
        """Read the mode that is in force."""
        return Response(live.EmergencySerializer(services.emergency()).data)

    @extend_schema(request=live.EmergencySerializer, responses=live.EmergencySerializer)
    def put(self, request: Request) -> Response:
        """Set it; shadow and off require a reason."""
        data = validated(live.EmergencySerializer, request.data)
        with acting(**who(request)):
            services.set_emergency(**data)
        return self.get(request)


class ShadowRefusalView(ApiView):
    """Requests that policies in shadow mode would have rejected."""

    rights: ClassVar = {"GET": (Action.VIEW_LIMITS,)}

    @extend_schema(responses=live.ShadowRefusalSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Count them; the counts are those of the responding process."""
        counted = services.shadow_refusals().items()
        return Response([{"resource": name, "key": key, "count": n} for name, by in counted for key, n in by.items()])


class _LiveListView(ListView):
    """A list without a version, since it changes all the time."""

    tagged = False

    def filters(self, request: Request) -> dict[str, Any]:
        """The parameters of a request that select rows, validated."""
        parameters = queries.read(self.query, request.query_params)
        return {name: value for name, value in parameters.items() if name not in self.query.beside}

    def paginated(self, rows: Any, represent: Callable[[Any], Any]) -> Response:
        """Return the requested page, with each item represented by `represent`."""
        page = self.paginate_queryset(rows)
        return self.get_paginated_response([represent(row) for row in page or ()])


class UsageView(_LiveListView):
    """Usage as of the last roll-up."""

    rights: ClassVar = {"GET": (Action.VIEW_USAGE,)}
    queryset = UsageSnapshot.objects.all()
    serializer_class = live.UseSerializer
    query = queries.UsageQuery

    @extend_schema(responses=live.UseSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read allowed amounts and rejections, as of the last roll-up; latest period first, then the largest usage."""
        return self.paginated(uses(**self.filters(request)), Use.as_dict)


class SpendView(_LiveListView):
    """Costs of usage as of the last roll-up."""

    rights: ClassVar = {"GET": (Action.VIEW_USAGE,)}
    queryset = UsageSnapshot.objects.all()
    serializer_class = live.SpendSerializer
    query = queries.SpendQuery

    @extend_schema(responses=live.SpendSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read what usage costs, as of the last roll-up; latest period first, then the highest amount."""
        return self.paginated(spend(**self.filters(request)), Spend.as_dict)


class DenialView(_LiveListView):
    """Rejected requests."""

    rights: ClassVar = {"GET": (Action.VIEW_USAGE,)}
    queryset = Denial.objects.all()
    serializer_class = live.DenialSerializer
    query = queries.DenialQuery

    @extend_schema(responses=live.DenialSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read rejections by minute, entity and limit; latest minute first, then the highest count."""
        parameters = queries.read(self.query, request.query_params)
        denials = denied(**{name: parameters.get(name) for name in _DENIAL_FILTERS})
        page = explained(self.paginate_queryset(denials) or ())
        return self.get_paginated_response(self.get_serializer(page, many=True).data)


class MeView(_LiveListView):
    """The caller's own limits and usage."""

    permission_classes = (permissions.Callers,)
    queryset = Resource.objects.all()
    serializer_class = live.MineSerializer
    query = queries.MeQuery

    @extend_schema(responses=live.MineSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Read the limits and usage of the requesting entity on the configured resources."""
        entity, plan, _ = identify(limits_of(request))  # REST framework authenticates after the middleware
        used = _used(entity, queries.read(self.query, request.query_params))

        def mine(resource: Resource) -> dict[str, Any]:
            state, usage = _state(resource.name, entity, plan), used.get(resource.name, {})
            return {"resource": resource.name, "entity": entity, "limits": state, "usage": usage}

        return self.paginated(self.rows(request), mine)


class ResetView(ApiView):
    """Reset usage."""

    rights: ClassVar = {"POST": (Action.RESET,)}

    @extend_schema(request=serializers.ResetSerializer, responses=serializers.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Reset the usage of an entity on a resource; concurrent permits are not released."""
        return Response(
            {"done": services.reset(**validated(serializers.ResetSerializer, request.data), **who(request))}
        )


class TopUpView(ApiView):
    """Give credit."""

    rights: ClassVar = {"POST": (Action.TOP_UP,)}

    @extend_schema(request=serializers.TopUpSerializer, responses=serializers.DoneSerializer)
    def post(self, request: Request) -> Response:
        """Give an entity credit for a limit, up to its capacity."""
        data = validated(serializers.TopUpSerializer, request.data)
        amount = amount_of(data.pop("amount"))
        return Response({"done": services.top_up(**data, amount=amount, **who(request))})


class BoostView(ApiView):
    """Raise limits of an entity temporarily."""

    rights: ClassVar = {"POST": (Action.BOOST,)}
    tagged = True

    @extend_schema(request=serializers.BoostSerializer, responses={201: serializers.PolicySerializer})
    def post(self, request: Request) -> Response:
        """Grant a boost: a policy with dates. Limits that are not in the request stay unchanged."""
        data = validated(serializers.BoostSerializer, request.data)
        limits = [row.definition() for row in definitions.read_limits(data["limits"])]
        if data["resource"] is not None:
            definitions.check_stored(Resource, data["resource"], ("resource",))
        with acting(**who(request)):  # without a reason: the boost has its own
            check(request, Action.BOOST, *to_create_entity(data["entity"]))
            how = data["until"], data["reason"]
            policy = services.grant_boost(data["entity"], data["resource"], limits, *how, plan=data["plan"])
        granted = Policy.objects.using(policy._state.db).prefetch_related("limits").get(pk=policy.pk)
        return self.answered(request, serializers.PolicySerializer(granted).data, 201)


def _amount(text: str) -> tuple[str, Amount]:
    key, _colon, amount = text.rpartition(":")
    return key, cast(Amount, amount_of(Decimal(amount)))


def _used(entity: str | None, data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The usage of an entity (None: the site itself) in the requested range, by resource and limit."""
    time = {name: data[name] for name in ("period", "since", "until") if name in data}
    by_resource: dict[str, dict[str, Any]] = {}
    for use in uses(entity=entity or "", by="resource", **time)[:]:
        if use.bucket == BucketKind.ENTITY:  # a pool member can have the same name as an entity
            used = {"admitted": use.admitted, "rejected": use.refused, "rejected_share": use.refused_share}
            by_resource.setdefault(use.resource or "", {})[use.key] = used
    return by_resource


def _state(resource: str, entity: str | None, plan: str | None) -> dict[str, Stats]:
    """The state of one scope; without an entity, of the site itself only."""
    while True:
        try:
            return services.limit_set(resource, entity, plan=None if entity is None else plan).get_stats()
        except StaleConfiguration:
            continue
