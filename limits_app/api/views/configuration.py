"""What administrators set, and the log of who set it."""

from __future__ import annotations

from limits_app.api.serializers import queries
from limits_app.api.serializers.configuration import EndpointSerializer, EntitySerializer, ResourceSerializer
from limits_app.api.serializers.policies import PolicySerializer, PoolSerializer
from limits_app.api.serializers.state import AuditEventSerializer
from limits_app.api.views.base import ConfigurationView
from limits_app.models import AuditEvent, Endpoint, Entity, Policy, Pool, Resource

__all__ = ["AuditEventView", "EndpointView", "EntityView", "PolicyView", "PoolView", "ResourceView"]


class ResourceView(ConfigurationView):
    """What is consumed."""

    queryset = Resource.objects.select_related("pool")
    serializer_class = ResourceSerializer
    query = queries.ResourceQuery
    search_fields = ("name", "description")


class EntityView(ConfigurationView):
    """Who consumes."""

    queryset = Entity.objects.select_related("parent")
    serializer_class = EntitySerializer
    query = queries.EntityQuery
    search_fields = ("identifier", "name")


class PolicyView(ConfigurationView):
    """What holds for whom, with its limits."""

    queryset = Policy.objects.select_related("resource", "entity").prefetch_related("limits")
    serializer_class = PolicySerializer
    query = queries.PolicyQuery
    search_fields = ("resource__name", "entity__identifier", "entity__name", "reason")


class PoolView(ConfigurationView):
    """Interchangeable suppliers, with their limits."""

    queryset = Pool.objects.prefetch_related("members__limits")
    serializer_class = PoolSerializer
    query = queries.PoolQuery
    search_fields = ("name", "description")


class EndpointView(ConfigurationView):
    """Which requests of the site use what."""

    queryset = Endpoint.objects.select_related("resource")
    serializer_class = EndpointSerializer
    query = queries.EndpointQuery
    search_fields = ("name", "description", "path", "view_name")


class AuditEventView(ConfigurationView):
    """Who changed what: to read only."""

    queryset = AuditEvent.objects.all()
    serializer_class = AuditEventSerializer
    query = queries.AuditEventQuery
    search_fields = ("object_label", "actor", "reason")
    http_method_names = ("get", "head")
