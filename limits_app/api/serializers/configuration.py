"""Configuration: represented by serializers, read by `services.definitions`; and what else changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from django.db import models
from rest_framework import serializers

from limits_app.api.serializers.fields import AmountField, DateTimeField, Exact, ObjectField, StrictSerializer
from limits_app.models import (
    AuditEvent,
    Configuration,
    Endpoint,
    Entity,
    Limit,
    Policy,
    PolicyScope,
    Pool,
    PoolMember,
    Resource,
)
from limits_app.models.fields import ExactTextField
from limits_app.services import definitions
from limits_app.services.definitions import FIELDS, MOST_PARTS

__all__ = [
    "AuditEventSerializer",
    "BoostSerializer",
    "DefinitionSerializer",
    "DoneSerializer",
    "EndpointSerializer",
    "EntitySerializer",
    "PolicySerializer",
    "PoolSerializer",
    "ResetSerializer",
    "ResourceSerializer",
    "RevertSerializer",
    "TopUpSerializer",
]

C = TypeVar("C", bound=Configuration)


class DefinitionSerializer(serializers.ModelSerializer[C]):
    """A row as it is; what is sent is read and checked by `services.definitions`, which PUT gives the defaults too."""

    serializer_field_mapping = serializers.ModelSerializer.serializer_field_mapping | {
        ExactTextField: Exact,
        models.DateTimeField: DateTimeField,
        models.DecimalField: AmountField,
        models.JSONField: ObjectField,
    }

    def to_internal_value(self, data: Any) -> Any:
        """Read a definition; fields that can only be read are passed over, so that an answer can be sent back."""
        if isinstance(data, Mapping):
            fields = self.fields
            data = {name: value for name, value in data.items() if name not in fields or not fields[name].read_only}
        row = self.instance or cast(Any, self.Meta.model)()
        return {"definition": definitions.read(row, data, partial=bool(self.partial))}

    def create(self, validated_data: Any) -> C:
        """Save a new row with its parts."""
        definitions.save(validated_data["definition"])
        return cast(C, validated_data["definition"].row)

    def update(self, instance: C, validated_data: Any) -> C:
        """Save a row and its parts."""
        return self.create(validated_data)


class _PartSerializer(DefinitionSerializer[C]):
    """A part of a row, which is read together with the row."""

    def to_internal_value(self, data: Any) -> Any:
        """Leave it as it was sent."""
        return data


def _parts(serializer: Any, **options: Any) -> Any:
    return serializer(**{"many": True, "required": False, "max_length": MOST_PARTS, **options})


def _name_of(model: type[Configuration], *, required: bool = False) -> Any:
    return serializers.SlugRelatedField(
        slug_field=model.named_by, queryset=model._default_manager.all(), required=required, allow_null=not required
    )


class LimitSerializer(_PartSerializer[Limit]):
    """One limit; which fields it has depends on its kind, the others are empty. It can be sent as text, too."""

    class Meta:
        model = Limit
        fields: tuple[str, ...] = tuple(name for name in FIELDS[Limit] if name != "shared")
        validators = ()


class PolicyLimitSerializer(LimitSerializer):
    """One limit of a policy, which can be one for all entities together."""

    class Meta(LimitSerializer.Meta):
        fields = FIELDS[Limit]


class PoolMemberSerializer(_PartSerializer[PoolMember]):
    """A member of a pool."""

    limits = _parts(LimitSerializer)

    class Meta:
        model = PoolMember
        fields = (*FIELDS[PoolMember], "limits")
        validators = ()


class ResourceSerializer(DefinitionSerializer[Resource]):
    """Something scarce that limits can be set for."""

    pool = _name_of(Pool)

    class Meta:
        model = Resource
        fields = ("id", *FIELDS[Resource])
        validators = ()


class EntitySerializer(DefinitionSerializer[Entity]):
    """A client, user or tenant."""

    parent = _name_of(Entity)

    class Meta:
        model = Entity
        fields = ("id", *FIELDS[Entity])
        validators = ()


class PolicySerializer(DefinitionSerializer[Policy]):
    """What holds for whom, with its limits; it is written as a whole, or not at all."""

    scope = serializers.ChoiceField(PolicyScope.choices, read_only=True)
    resource = _name_of(Resource)
    entity = _name_of(Entity)
    limits = _parts(PolicyLimitSerializer)

    class Meta:
        model = Policy
        fields = ("id", "scope", *FIELDS[Policy], "limits", "created_at", "updated_at")
        validators = ()


class PoolSerializer(DefinitionSerializer[Pool]):
    """Interchangeable members with their limits; it is written as a whole, or not at all."""

    members = _parts(PoolMemberSerializer)

    class Meta:
        model = Pool
        fields = ("id", *FIELDS[Pool], "members")
        validators = ()


class EndpointSerializer(DefinitionSerializer[Endpoint]):
    """Which requests of the site use what."""

    resource = _name_of(Resource, required=True)

    class Meta:
        model = Endpoint
        fields = ("id", *FIELDS[Endpoint])
        validators = ()


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    """One change, and who made it."""

    when = DateTimeField(read_only=True)
    before = serializers.JSONField(read_only=True, allow_null=True)
    after = serializers.JSONField(read_only=True, allow_null=True)

    class Meta:
        model = AuditEvent
        fields = (
            "id",
            "number",
            "when",
            "actor",
            "source",
            "verb",
            "object_type",
            "object_id",
            "object_label",
            "before",
            "after",
            "reason",
        )
        read_only_fields = fields


class RevertSerializer(StrictSerializer):
    """Take a change back, with `force` also where the object was changed since."""

    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=1000)
    force = serializers.BooleanField(required=False, default=False)


class _ChangeSerializer(StrictSerializer):
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=1000)
    idempotency_key = serializers.CharField(
        required=False, allow_null=True, default=None, max_length=255, help_text="Sent again, it is done only once."
    )


class ResetSerializer(_ChangeSerializer):
    """Forget what an entity (none: the site itself, and what all share) has used of some limits, or of all."""

    resource = Exact(max_length=64)
    entity = Exact(required=False, allow_null=True, default=None, max_length=255)
    keys = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, allow_null=True, default=None, max_length=MOST_PARTS
    )


class TopUpSerializer(_ChangeSerializer):
    """Give an entity (none: the site itself) credit of one limit."""

    resource = Exact(max_length=64)
    entity = Exact(required=False, allow_null=True, default=None, max_length=255)
    key = serializers.CharField(max_length=64)
    amount = AmountField()


class DoneSerializer(StrictSerializer):
    """Whether it was done now; if not, it was done before with the same idempotency key."""

    done = serializers.BooleanField()


class BoostSerializer(StrictSerializer):
    """Give an entity other limits on a resource that there is (none: on all) from now on until a moment."""

    entity = Exact(max_length=255)
    resource = Exact(max_length=64, required=False, allow_null=True, default=None)
    limits = _parts(LimitSerializer, required=True, min_length=1)
    until = DateTimeField()
    reason = serializers.CharField(max_length=1000)
