"""What the REST API tells of live state."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from limits_app.api.serializers.fields import DateTimeField, StrictSerializer
from limits_app.models import Bucket

__all__ = [
    "DenialSerializer",
    "ExplanationSerializer",
    "MineSerializer",
    "ShadowRefusalSerializer",
    "StatusSerializer",
    "UseSerializer",
]


@extend_schema_field({"type": "number"})
class Number(serializers.FloatField):
    """A number, whole or not."""


def _text() -> serializers.CharField:
    return serializers.CharField()


def _name() -> serializers.CharField:
    return serializers.CharField(allow_null=True)


class BucketSerializer(StrictSerializer):
    """The state of one bucket."""

    type = _text()
    algorithm = _name()
    window_seconds = Number(allow_null=True)
    capacity = Number()
    available = Number()
    used = Number()
    utilization = Number()
    burst = Number(required=False)
    holders = serializers.IntegerField(required=False)
    period = serializers.CharField(required=False, allow_null=True)
    time_zone = serializers.CharField(required=False, allow_null=True)


class OneOfSeveralSerializer(BucketSerializer):
    """One of several buckets that a limit has for a caller, as of an entity and of its parent."""

    resource = _name()
    entity = _name()
    level = _text()


class StatsSerializer(BucketSerializer):
    """The state of one limit: of its tightest bucket where it has several, which `buckets` lists."""

    buckets = OneOfSeveralSerializer(many=True, required=False)


class StatusSerializer(StrictSerializer):
    """The state of an entity on a resource; of a resource as a whole also what all known entities use together."""

    resource = _text()
    entity = _name()
    limits = serializers.DictField(child=StatsSerializer())
    entities = serializers.IntegerField(allow_null=True)
    used_by_all = serializers.DictField(child=Number())
    members = serializers.DictField(child=serializers.DictField(child=StatsSerializer()))


class UsedSerializer(StrictSerializer):
    """How much was admitted, and how often it was refused; the share of refusals only where a call is the unit."""

    admitted = Number()
    refused = serializers.IntegerField()
    refused_share = Number(allow_null=True)


class UseSerializer(UsedSerializer):
    """How much of a limit was used; what it was not told apart by is null. `start` is that of the period."""

    bucket = serializers.ChoiceField(Bucket.choices)
    key = _text()
    resource = _name()
    entity = _name()
    start = DateTimeField(allow_null=True)


class DenialSerializer(StrictSerializer):
    """How often a limit refused in a minute, and when first and last; an empty entity is the site itself."""

    minute = DateTimeField()
    resource = _text()
    bucket = serializers.ChoiceField(Bucket.choices)
    entity = serializers.CharField(allow_blank=True)
    key = _text()
    count = serializers.IntegerField()
    first = DateTimeField()
    last = DateTimeField()


class MineSerializer(StrictSerializer):
    """The caller's own limits on a resource, and what was used of them; requests are charged to `entity`."""

    resource = _text()
    entity = _name()
    limits = serializers.DictField(child=StatsSerializer())
    usage = serializers.DictField(child=UsedSerializer())


class ShadowRefusalSerializer(StrictSerializer):
    """How many requests a limit in the shadow would have refused, in the process that answers."""

    resource = _text()
    key = _text()
    count = serializers.IntegerField()


class LimitStatusSerializer(StrictSerializer):
    """One limit in a decision; times are in seconds from now."""

    key = _text()
    resource = _name()
    entity = _name()
    level = _text()
    capacity = Number()
    requested = Number()
    remaining = Number()
    retry_after = Number(allow_null=True)
    reset_after = Number()
    never = serializers.BooleanField()
    overdrawn = Number()
    member = _name()
    shared = serializers.BooleanField()


class OutcomeSerializer(StrictSerializer):
    """What would be decided."""

    allowed = serializers.BooleanField()
    retry_after = Number(allow_null=True)
    never = serializers.BooleanField()
    degraded = serializers.BooleanField()
    violations = LimitStatusSerializer(many=True)
    passed = LimitStatusSerializer(many=True)
    overdrawn = LimitStatusSerializer(many=True)
    shadowed = LimitStatusSerializer(many=True)


class CandidateSerializer(StrictSerializer):
    """A policy that was considered."""

    level = _text()
    policy = serializers.IntegerField(allow_null=True)


class VerdictSerializer(CandidateSerializer):
    """A policy that was considered, and what became of it."""

    effect = _text()
    standing = _text()
    counts = serializers.BooleanField()
    limits = serializers.ListField(child=serializers.CharField())
    valid_from = serializers.CharField(allow_null=True)
    valid_until = serializers.CharField(allow_null=True)
    weekly = serializers.BooleanField()


class ExplainedLimitSerializer(StrictSerializer):
    """A limit that holds, and where it comes from."""

    key = _text()
    shared = serializers.BooleanField()
    level = _text()
    policy = serializers.IntegerField(allow_null=True)
    replaced = CandidateSerializer(many=True)
    used = Number(allow_null=True)
    binds = serializers.BooleanField()
    status = LimitStatusSerializer(allow_null=True)


class ExplainedLinkSerializer(StrictSerializer):
    """One of those who are charged."""

    entity = _name()
    considered = VerdictSerializer(many=True)
    limits = ExplainedLimitSerializer(many=True)


class ExplainedMemberSerializer(StrictSerializer):
    """A member of a pool, and what it would do with the request."""

    name = _text()
    weight = serializers.IntegerField()
    standing = _text()
    limits = LimitStatusSerializer(many=True)
    load = Number(allow_null=True)
    retry_after = Number(allow_null=True)
    cooling_seconds = Number()


class ExplainedPoolSerializer(StrictSerializer):
    """The pool that serves a resource; `chosen` is the member that would serve the request."""

    name = _text()
    load_balancing = _text()
    failover = serializers.BooleanField()
    chosen = _name()
    members = ExplainedMemberSerializer(many=True)


class ExplanationSerializer(StrictSerializer):
    """Why a request would be admitted or refused now."""

    resource = _text()
    entity = _name()
    known = serializers.BooleanField(help_text="Whether there is a resource of this name.")
    store = serializers.CharField(allow_null=True, help_text="The alias of its store; null for the default one.")
    outcome = OutcomeSerializer()
    dropped = serializers.ListField(child=serializers.CharField())
    considered = VerdictSerializer(many=True)
    chain = ExplainedLinkSerializer(many=True)
    changes_at = serializers.CharField(allow_null=True)
    pool = ExplainedPoolSerializer(allow_null=True)
    text = _text()
