"""What the REST API is asked to change besides rows, and what it tells of changes."""

from __future__ import annotations

from rest_framework import serializers

from limits_app.api.serializers.policies import MOST_PARTS, LimitSerializer, several
from limits_app.api.serializers.strict import AmountField, DateTimeField, Exact, NameField, StrictSerializer
from limits_app.models import AuditEvent, Resource

__all__ = [
    "AuditEventSerializer",
    "BoostSerializer",
    "DoneSerializer",
    "ResetSerializer",
    "RevertSerializer",
    "TopUpSerializer",
]


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
    resource = NameField(
        slug_field="name", queryset=Resource.objects.all(), required=False, allow_null=True, default=None
    )
    limits = several(LimitSerializer, required=True, min_length=1)
    until = DateTimeField()
    reason = serializers.CharField(max_length=1000)
