"""Serializers of live state: status, explanations, usage, rejections, candidates and the emergency switch."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from limits_app.api.fields import DateTimeField, StrictSerializer
from limits_app.models import BucketKind
from limits_app.policies import Access


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
    reset_after = Number(required=False)
    burst = Number(required=False)
    holders = serializers.IntegerField(required=False)
    period = serializers.CharField(required=False, allow_null=True)
    time_zone = serializers.CharField(required=False, allow_null=True)
    starts = serializers.CharField(required=False)
    in_slices = Number(required=False)
    keep = serializers.DictField(
        child=Number(), required=False, help_text="Which percentage requests leave free for higher ones, by priority."
    )


class OneOfSeveralSerializer(BucketSerializer):
    """One of several buckets of a limit, for example those of an entity and its parent."""

    resource = _name()
    entity = _name()
    level = _text()


class StatsSerializer(BucketSerializer):
    """The state of one limit. If it has several buckets, this is the tightest, and `buckets` lists all."""

    buckets = OneOfSeveralSerializer(many=True, required=False)


class StatusSerializer(StrictSerializer):
    """The state of an entity on a resource; for a whole resource also the total usage of all known entities."""

    resource = _text()
    entity = _name()
    limits = serializers.DictField(child=StatsSerializer())
    entities = serializers.IntegerField(allow_null=True)
    used_by_all = serializers.DictField(child=Number())
    members = serializers.DictField(child=serializers.DictField(child=StatsSerializer()))
    priority = _text()


class UsedSerializer(StrictSerializer):
    """Allowed amount and number of rejections; the rejected share is null unless the limit counts requests."""

    admitted = Number()
    rejected = serializers.IntegerField(source="refused")
    rejected_share = Number(source="refused_share", allow_null=True)


class UseSerializer(UsedSerializer):
    """Usage of a limit; fields that it is not grouped by are null. `start` is the start of the period."""

    bucket = serializers.ChoiceField(BucketKind.choices)
    key = _text()
    resource = _name()
    entity = _name()
    plan = _name()
    below = serializers.BooleanField(allow_null=True, help_text="Whether clients below the entity used it.")
    start = DateTimeField(allow_null=True)
    cost = serializers.DictField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="What the amount costs, as exact decimals by currency; null unless `cost` is requested.",
    )


class SpendSerializer(StrictSerializer):
    """What usage costs in a currency, as an exact decimal; fields that it is not grouped by are null."""

    currency = _text()
    resource = _name()
    entity = _name()
    plan = _name()
    below = serializers.BooleanField(allow_null=True)
    start = DateTimeField(allow_null=True)
    amount = _text()


class DenialSerializer(StrictSerializer):
    """Rejections by a limit within a minute, with the first and last time; an empty entity is the site itself.

    `why` is the reason as a sentence, with the limit as it was then.
    """

    minute = DateTimeField(source="count.minute")
    resource = serializers.CharField(source="count.resource")
    bucket = serializers.ChoiceField(BucketKind.choices, source="count.bucket")
    entity = serializers.CharField(allow_blank=True, source="count.entity")
    key = serializers.CharField(source="count.key")
    count = serializers.IntegerField(source="count.count")
    first = DateTimeField(source="count.first")
    last = DateTimeField(source="count.last")
    why = _text()


class MineSerializer(StrictSerializer):
    """The caller's own limits and usage on a resource; requests are charged to `entity`."""

    resource = _text()
    entity = _name()
    limits = serializers.DictField(child=StatsSerializer())
    usage = serializers.DictField(child=UsedSerializer())


class ShadowRefusalSerializer(StrictSerializer):
    """Number of requests that a limit in shadow mode would have rejected, in the responding process."""

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
    total = serializers.BooleanField(help_text="Whether it is over all resources.")
    priority = serializers.CharField(
        allow_blank=True, help_text="The priority of the request, where a share is kept free for higher ones."
    )
    kept_used = Number(help_text="How much is in use of the share that is kept free for higher priorities.")


class EmergencySerializer(StrictSerializer):
    """The mode of the emergency switch, its reason, and its end (null: until it is set again)."""

    mode = serializers.CharField(max_length=8, help_text="enforce, shadow or off.")
    reason = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")
    until = DateTimeField(required=False, allow_null=True, default=None)


class CandidateReportSerializer(StrictSerializer):
    """A candidate of a policy, and how many requests it evaluated and would have rejected."""

    policy_id = serializers.IntegerField()
    policy = _text()
    limits = _text()
    state = _text()
    percent = serializers.IntegerField()
    evaluated = serializers.IntegerField()
    rejected = serializers.IntegerField()
    rejected_percent = serializers.FloatField()
    by_key = serializers.DictField(child=serializers.DictField(child=serializers.IntegerField()))
    previous_limits = _text()


class CandidateChangeSerializer(StrictSerializer):
    """A change of the candidate of a policy; `limits` and the fields after it are those of a candidate to set."""

    policy = serializers.IntegerField(min_value=1, max_value=2**63 - 1, help_text="The id of the policy.")
    action = serializers.CharField(max_length=8, help_text="set, promote, revert or discard.")
    limits = serializers.CharField(max_length=10_000, required=False, help_text="Such as `calls=100/min`.")
    percent = serializers.IntegerField(required=False)
    revert_percent = serializers.IntegerField(required=False, allow_null=True)
    revert_minutes = serializers.IntegerField(required=False)


class OutcomeSerializer(StrictSerializer):
    """The decision about a request."""

    allowed = serializers.BooleanField()
    retry_after = Number(allow_null=True)
    never = serializers.BooleanField()
    degraded = serializers.BooleanField()
    violations = LimitStatusSerializer(many=True)
    passed = LimitStatusSerializer(many=True)
    overdrawn = LimitStatusSerializer(many=True)
    shadowed = LimitStatusSerializer(many=True)


class ConsideredSerializer(StrictSerializer):
    """A policy that was evaluated."""

    level = _text()
    policy = serializers.IntegerField(allow_null=True)


class CandidateSerializer(StrictSerializer):
    """Other limits of a policy, which are tested for `percent` of the entities, or were promoted and are watched."""

    limits = serializers.ListField(child=serializers.CharField())
    percent = serializers.IntegerField()
    promoted = serializers.BooleanField()
    watched_until = serializers.CharField(allow_null=True)


class VerdictSerializer(ConsideredSerializer):
    """A policy that was evaluated, and the result."""

    subject = serializers.CharField(allow_blank=True, help_text="The plan or the pattern that it is for.")
    effect = _text()
    standing = _text()
    counts = serializers.BooleanField()
    limits = serializers.ListField(child=serializers.CharField())
    valid_from = serializers.CharField(allow_null=True)
    valid_until = serializers.CharField(allow_null=True)
    weekly = serializers.BooleanField()
    candidate = CandidateSerializer(allow_null=True)


class ExplainedLimitSerializer(StrictSerializer):
    """An effective limit and its origin."""

    key = _text()
    shared = serializers.BooleanField()
    level = _text()
    policy = serializers.IntegerField(allow_null=True)
    replaced = ConsideredSerializer(many=True)
    used = Number(allow_null=True)
    binds = serializers.BooleanField()
    in_slices = Number()
    status = LimitStatusSerializer(allow_null=True)


class ExplainedLinkSerializer(StrictSerializer):
    """One of the entities that are charged, with its policies and limits."""

    entity = _name()
    considered = VerdictSerializer(many=True)
    limits = ExplainedLimitSerializer(many=True)


class ExplainedMemberSerializer(StrictSerializer):
    """A member of a pool, and its decision about the request."""

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


class AccessSerializer(StrictSerializer):
    """Whether requests of an entity are blocked, exempt or limited on all URLs, and by which policy."""

    verdict = serializers.ChoiceField([access.value for access in Access])
    subject = _name()
    level = serializers.CharField(allow_null=True)
    policy = serializers.IntegerField(allow_null=True)


class ExplainedUnitSerializer(StrictSerializer):
    """A unit that has a price; one that is unlimited is only counted."""

    key = _text()
    is_unlimited = serializers.BooleanField()
    per_million = serializers.DictField(
        child=serializers.CharField(), help_text="What 1,000,000 of it cost, by currency."
    )


class ExplanationSerializer(StrictSerializer):
    """Why a request would be allowed or rejected now."""

    resource = _text()
    entity = _name()
    known = serializers.BooleanField(help_text="Whether a resource of this name exists.")
    priority = _text()
    store = serializers.CharField(allow_null=True, help_text="The alias of its store; null for the default store.")
    emergency = serializers.CharField(help_text="The mode of the emergency switch: enforce, shadow or off.")
    access = AccessSerializer()
    outcome = OutcomeSerializer()
    dropped = serializers.ListField(child=serializers.CharField())
    other_code_limits = serializers.ListField(child=serializers.CharField())
    considered = VerdictSerializer(many=True)
    chain = ExplainedLinkSerializer(many=True)
    changes_at = serializers.CharField(allow_null=True)
    pool = ExplainedPoolSerializer(allow_null=True)
    units = ExplainedUnitSerializer(many=True)
    unpriced = serializers.ListField(
        child=serializers.CharField(), help_text="Currencies of limits in which the resource has no price."
    )
    text = _text()
