"""Resources, entities and endpoints."""

from __future__ import annotations

from limits_app.api.serializers.strict import NameField, RowSerializer
from limits_app.models import Endpoint, Entity, Pool, Resource

__all__ = ["EndpointSerializer", "EntitySerializer", "ResourceSerializer"]


class ResourceSerializer(RowSerializer[Resource]):
    """Something scarce that limits can be set for."""

    pool = NameField(slug_field="name", queryset=Pool.objects.all(), required=False, allow_null=True)

    class Meta:
        model = Resource
        fields = ("id", "name", "description", "pool", "store")
        validators = ()


class EntitySerializer(RowSerializer[Entity]):
    """Somebody who consumes."""

    parent = NameField(  # type: ignore[assignment]  # the framework takes fields out of the class
        slug_field="identifier", queryset=Entity.objects.all(), required=False, allow_null=True
    )

    class Meta:
        model = Entity
        fields = ("id", "identifier", "name", "parent", "cascade", "unlimited", "blocked", "metadata")
        validators = ()


class EndpointSerializer(RowSerializer[Endpoint]):
    """Which requests of the site use what."""

    resource = NameField(slug_field="name", queryset=Resource.objects.all())

    class Meta:
        model = Endpoint
        fields = (
            "id",
            "name",
            "description",
            "path",
            "view_name",
            "methods",
            "resource",
            "amounts",
            "order",
            "enabled",
        )
        validators = ()
