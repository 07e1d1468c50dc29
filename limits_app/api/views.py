"""Views for configuration and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from django.db import router, transaction
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app import audit
from limits_app.api import queries
from limits_app.api.base import ApiView, ConfigurationView
from limits_app.api.fields import validated
from limits_app.api.permissions import reason_of, who
from limits_app.api.problems import Problem
from limits_app.api.schema import extend_schema
from limits_app.api.serializers import (
    AlertRuleSerializer,
    AuditEventSerializer,
    EndpointSerializer,
    EntitySerializer,
    PlanSerializer,
    PolicySerializer,
    PoolSerializer,
    PriceSerializer,
    ResourceSerializer,
    RevertSerializer,
)
from limits_app.integrations.authors import author_of
from limits_app.models import AlertRule, AuditEvent, Endpoint, Entity, Plan, Policy, Pool, Price, Resource
from limits_app.models.policy_rules import weakened
from limits_app.models.price import begun_message
from limits_app.services import block_confirmation
from limits_app.services.policy_warnings import left_without
from limits_app.services.rights import Action, may_revert


def check_confirmed(request: Request, problems: Iterable[str]) -> None:
    """Raise Problem with the status 409 for what needs a confirmation, unless the request has `confirm=true`."""
    reasons = [] if request.query_params.get("confirm") == "true" else [*problems]
    if reasons:
        confirm = _("To confirm, send the request with ?confirm=true.")
        raise Problem(HTTPStatus.CONFLICT, " ".join([*reasons, confirm]))


class ConfirmedView(ConfigurationView):
    """Configuration of which some changes need `confirm=true`."""

    is_confirmed = True

    def saved(self, serializer: Any) -> Any:
        """Save it, if what needs a confirmation has one."""
        stored = serializer.instance
        before = (
            None if stored is None else block_confirmation.state_of(stored)
        )  # reading the definition changes the row
        serializer.is_valid(raise_exception=True)
        row = serializer.validated_data["definition"].row
        check_confirmed(self.request, self.problems(before, row))
        return serializer.save()

    def problems(self, before: Mapping[str, Any] | None, row: Any) -> Iterator[str]:
        """Return what needs a confirmation, of a row that was as `before`: a block that also hits its author."""
        if warning := block_confirmation.warning(
            [(type(row), before, block_confirmation.state_of(row))], author_of(self.request)
        ):
            yield warning


class ResourceView(ConfigurationView):
    """Resources."""

    queryset = Resource.objects.select_related("pool")
    serializer_class = ResourceSerializer
    query = queries.ResourceQuery
    search_fields = ("name", "description")


class PriceView(ConfigurationView):
    """Prices: a change is a new price that is valid from a later hour."""

    queryset = Price.objects.all()
    serializer_class = PriceSerializer
    query = queries.PriceQuery
    search_fields = ("resource", "member", "unit")

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete one that has not begun."""
        price = self.get_queryset().filter(pk=pk).first()
        if price is not None and price.has_begun:
            raise Problem(HTTPStatus.CONFLICT, begun_message(str(price)))
        return super().destroy(request, pk)


class PlanView(ConfigurationView):
    """Plans."""

    queryset = Plan.objects.all()
    serializer_class = PlanSerializer
    query = queries.PlanQuery
    search_fields = ("name", "description")


class EntityView(ConfirmedView):
    """Entities: users, API keys, tenants."""

    queryset = Entity.objects.select_related("parent", "plan")
    serializer_class = EntitySerializer
    query = queries.EntityQuery
    search_fields = ("identifier", "name")


class PolicyView(ConfirmedView):
    """Policies with their limits."""

    queryset = Policy.objects.select_related("resource", "entity", "plan").prefetch_related("limits")
    serializer_class = PolicySerializer
    query = queries.PolicyQuery
    search_fields = ("resource__name", "entity__identifier", "entity__name", "plan__name", "reason")

    def problems(self, before: Any, row: Any) -> Iterator[str]:
        """A block may need a confirmation, and a policy in force that would be enforced no longer, or for fewer."""
        if before is not None and (why := weakened(before, vars(row))):
            yield f"{why} {left_without(row)}"
        yield from super().problems(before, row)


class PoolView(ConfigurationView):
    """Pools with their members and limits."""

    queryset = Pool.objects.prefetch_related("members__limits")
    serializer_class = PoolSerializer
    query = queries.PoolQuery
    search_fields = ("name", "description")


class EndpointView(ConfigurationView):
    """Rules that map requests of the site to resources."""

    queryset = Endpoint.objects.select_related("resource")
    serializer_class = EndpointSerializer
    query = queries.EndpointQuery
    search_fields = ("name", "description", "path", "view_name")


class AlertRuleView(ConfigurationView):
    """Rules for alerts; the audit log does not record them."""

    queryset = AlertRule.objects.all()
    serializer_class = AlertRuleSerializer
    query = queries.AlertRuleQuery
    search_fields = ("name", "resource", "entity")


class AuditEventView(ConfigurationView):
    """The audit log; read only."""

    queryset = AuditEvent.objects.all()
    serializer_class = AuditEventSerializer
    query = queries.AuditEventQuery
    search_fields = ("object_label", "actor", "reason")
    http_method_names = ("get", "head")


class RevertView(ApiView):
    """Revert a change."""

    rights: ClassVar = {"POST": (Action.REVERT,)}
    queryset = AuditEvent.objects.all()
    tagged = True
    is_confirmed = True

    @extend_schema(request=RevertSerializer, responses=AuditEventSerializer)
    def post(self, request: Request, pk: int) -> Response:
        """Restore an object to its state before an event; returns the new event of the object."""
        data = validated(RevertSerializer, request.data)
        using = router.db_for_write(AuditEvent)
        events = self.queryset.using(using)
        event = get_object_or_404(events, pk=pk)
        with transaction.atomic(using=using):  # no other transaction appends to the log
            with audit.acting(reason=data["reason"] or reason_of(request), using=using, **who(request)):
                if not may_revert(request.user, event):
                    raise PermissionDenied
                warning = block_confirmation.warning([block_confirmation.revert_of(event)], author_of(request))
                check_confirmed(request, [warning] if warning else [])
                audit.revert(event, force=data["force"])
            left = events.order_by("-number").filter(object_type=event.object_type, object_id=event.object_id)[0]
        return self.answered(request, AuditEventSerializer(left).data)
