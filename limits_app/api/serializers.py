"""Serializers for configuration, the audit log, resets, top-ups and boosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from django.db import models
from rest_framework import serializers

from limits_app.api.fields import AmountField, DateTimeField, Exact, ExactDecimal, ObjectField, StrictSerializer
from limits_app.models import (
    AlertRule,
    AuditEvent,
    Endpoint,
    Entity,
    Limit,
    Plan,
    Policy,
    PolicyScope,
    Pool,
    PoolMember,
    Price,
    Resource,
    registered,
)
from limits_app.models.audit_log import CONTENT
from limits_app.models.base import Definable
from limits_app.models.fields import ExactDecimalField, ExactTextField
from limits_app.models.plan import MAX_PLAN_LENGTH
from limits_app.services import definitions, limit_fields
from limits_app.services.definitions import MOST_PARTS
from limits_app.services.rights import may_change_rows

C = TypeVar("C", bound=Definable)


_NUMBERS: Final = {
    models.BigAutoField: serializers.IntegerField,
    models.BigIntegerField: serializers.IntegerField,
    models.AutoField: serializers.IntegerField,
}
"""Numbers are numbers, whatever COERCE_BIGINT_TO_STRING says."""


class DefinitionSerializer(serializers.ModelSerializer[C]):
    """Represents a row; request bodies are validated by `services.definitions`, with defaults for PUT."""

    serializer_field_mapping = serializers.ModelSerializer.serializer_field_mapping | {
        ExactTextField: Exact,
        **_NUMBERS,
        models.DateTimeField: DateTimeField,
        models.DecimalField: AmountField,
        ExactDecimalField: ExactDecimal,
        models.JSONField: ObjectField,
    }

    def build_relational_field(self, field_name: str, relation_info: Any) -> Any:
        """Represent another row by its name."""
        model = relation_info.related_model
        rows = model._default_manager.all()
        options = {"slug_field": model.named_by, "queryset": rows, "required": False, "allow_null": True}
        return serializers.SlugRelatedField, options

    def to_internal_value(self, data: Any) -> Any:
        """Read a definition; read-only fields are ignored, so that a response body can be sent back."""
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
    """A nested object, which is validated together with its parent."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the data unchanged."""
        return data


def _options(model: type[Definable], *fields: str) -> Any:
    """The options of a serializer with these fields; the models validate them."""
    return type("Meta", (), {"model": model, "fields": fields, "validators": ()})


def _meta(model: type[Definable], *more: str) -> Any:
    """The options of a serializer with the fields of a model, and what follows them."""
    entry = registered(model)
    before = ("id", *getattr(model, "implied", ())) if entry.section else ()
    return _options(model, *before, *entry.fields, *filter(None, [entry.parts]), *more)


def _parts(serializer: Any, **options: Any) -> Any:
    return serializer(**{"many": True, "required": False, "max_length": MOST_PARTS, **options})


class LimitSerializer(_PartSerializer[Limit]):
    """One limit. Its kind decides which fields apply; the others are empty. It can also be sent as text."""

    def build_field(self, field_name: str, info: Any, model_class: Any, nested_depth: int) -> Any:
        """Build each field from that of forms, because most are in the text of the row."""
        return self.build_standard_field(field_name, limit_fields.FIELDS[field_name])

    def to_representation(self, instance: Limit) -> Any:
        """Represent the fields that the text of the row has."""
        return super().to_representation(limit_fields.split(instance))  # type: ignore[arg-type]  # a mapping serves

    Meta = _options(Limit, *(name for name in limit_fields.FIELDS if name != "shared"))


class PolicyLimitSerializer(LimitSerializer):
    """One limit of a policy; it can be shared by all entities."""

    Meta = _options(Limit, *limit_fields.FIELDS)


class PoolMemberSerializer(_PartSerializer[PoolMember]):
    """A member of a pool."""

    limits = _parts(LimitSerializer)

    Meta = _meta(PoolMember)


class ResourceSerializer(DefinitionSerializer[Resource]):
    """A resource that can be limited."""

    Meta = _meta(Resource)


class PriceSerializer(DefinitionSerializer[Price]):
    """The price of a unit of a resource from an hour on."""

    Meta = _meta(Price)


class PlanSerializer(DefinitionSerializer[Plan]):
    """A plan, such as free or pro."""

    Meta = _meta(Plan)


class EntitySerializer(DefinitionSerializer[Entity]):
    """A client, user or tenant, or a pattern of them."""

    Meta = _meta(Entity)


class PolicySerializer(DefinitionSerializer[Policy]):
    """A policy with its limits; they are saved together or not at all."""

    scope = serializers.ChoiceField(PolicyScope.choices, read_only=True)
    limits = _parts(PolicyLimitSerializer)

    Meta = _meta(Policy, "created_at", "updated_at")


class PoolSerializer(DefinitionSerializer[Pool]):
    """A pool with its members and their limits; they are saved together or not at all."""

    members = _parts(PoolMemberSerializer)

    Meta = _meta(Pool)


class EndpointSerializer(DefinitionSerializer[Endpoint]):
    """A rule for URLs, with its own limits or with a resource."""

    Meta = _meta(Endpoint)


class AlertRuleSerializer(DefinitionSerializer[AlertRule]):
    """A rule for alerts. Its target is shown to users who may change it, and its secret never."""

    kind = serializers.CharField(max_length=16, help_text="threshold, rejections, store, candidate or emergency.")
    secret = serializers.CharField(
        write_only=True,
        required=False,
        allow_blank=True,
        max_length=255,
        help_text="Signs the requests to a webhook. A stored secret stays where the field is left out.",
    )

    def to_internal_value(self, data: Any) -> Any:
        """Read a rule, and its secret, which no other definition has."""
        if not isinstance(data, Mapping) or "secret" not in data:
            return super().to_internal_value(data)
        try:
            secret = self.fields["secret"].run_validation(data["secret"])
        except serializers.ValidationError as error:
            raise serializers.ValidationError({"secret": error.detail}) from error
        read = super().to_internal_value({name: value for name, value in data.items() if name != "secret"})
        read["definition"].row.secret = secret
        return read

    def to_representation(self, instance: AlertRule) -> Any:
        """Represent a rule; its target is empty for users who may only view it."""
        shown = super().to_representation(instance)
        return shown if may_change_rows(self.context["request"].user, "change", AlertRule) else shown | {"target": ""}

    Meta = _meta(AlertRule, "secret", "created_at")


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    """One change in the audit log."""

    serializer_field_mapping = serializers.ModelSerializer.serializer_field_mapping | _NUMBERS

    when = DateTimeField(read_only=True)
    before = serializers.JSONField(read_only=True, allow_null=True)
    after = serializers.JSONField(read_only=True, allow_null=True)

    class Meta:
        model = AuditEvent
        fields = ("id", "number", *(name for name in CONTENT if name != "idempotency_key"))
        read_only_fields = fields


class RevertSerializer(StrictSerializer):
    """Revert a change; with `force` even if the object has been changed since."""

    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=1000)
    force = serializers.BooleanField(required=False, default=False)


def _plan_of_requests() -> Exact:
    return Exact(
        required=False,
        allow_null=True,
        allow_blank=True,
        default=None,
        max_length=MAX_PLAN_LENGTH,
        help_text="The plan of its requests, where only PLAN_OF_REQUEST knows it; empty for none.",
    )


class _StateSerializer(StrictSerializer):
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=1000)
    idempotency_key = serializers.CharField(
        required=False,
        allow_null=True,
        default=None,
        max_length=255,
        help_text="A repeated request with the same key has no effect.",
    )
    resource = Exact(max_length=64, allow_null=True, help_text="null: the totals over all resources.")
    entity = Exact(required=False, allow_null=True, default=None, max_length=255)
    plan = _plan_of_requests()


class ResetSerializer(_StateSerializer):
    """Reset the usage of an entity (null: the site itself and shared limits) for some limits, or for all."""

    keys = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, allow_null=True, default=None, max_length=MOST_PARTS
    )


class TopUpSerializer(_StateSerializer):
    """Give an entity (null: the site itself) credit for one limit."""

    key = serializers.CharField(max_length=64)
    amount = AmountField()


class DoneSerializer(StrictSerializer):
    """Whether the action was carried out; false if it was done before with the same idempotency key."""

    done = serializers.BooleanField()


class BoostSerializer(StrictSerializer):
    """Raise limits of an entity on an existing resource (null: on all) from now until a timestamp."""

    entity = Exact(max_length=255)
    resource = Exact(max_length=64, required=False, allow_null=True, default=None)
    plan = _plan_of_requests()
    limits = _parts(LimitSerializer, required=True, min_length=1)
    until = DateTimeField()
    reason = serializers.CharField(max_length=1000)
