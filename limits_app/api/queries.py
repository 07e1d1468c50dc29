"""Query parameters: typed filters, paging and ordering. Unknown parameters are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from django.db.models import Q
from django.http import QueryDict
from rest_framework import serializers
from rest_framework.fields import empty

from limits_app.api.fields import DateTimeField, Exact, StrictSerializer
from limits_app.api.problems import WrongQuery
from limits_app.models import (
    AlertKind,
    Enforcement,
    Entity,
    PolicyEffect,
    PolicyScope,
    UsagePeriod,
    Verb,
    in_scope,
    write_alias,
)
from limits_app.models.patterns import matching
from limits_app.models.plan import MAX_PLAN_LENGTH
from limits_app.models.prefixes import ADDRESS
from limits_app.models.validators import validate_client, validate_identifier, validate_priority, validate_resource_name
from limits_app.usage.reading import By

MAX_PAGE_SIZE: Final = 200

_HOLDS: Final[Mapping[str, Q]] = {
    "always": Q(valid_from=None, weekly_hours=""),
    "dates": Q(valid_from__isnull=False),
    "hours": ~Q(weekly_hours=""),
}


def read(query: type[serializers.Serializer[Any]], parameters: QueryDict) -> dict[str, Any]:
    """Return the validated query parameters; raises WrongQuery with an error for each invalid one."""
    fields = query().fields
    plain = {
        name: values if isinstance(fields.get(name), serializers.ListField) else values[-1]
        for name, values in parameters.lists()
    }
    serializer = query(data=plain)
    try:
        serializer.is_valid(raise_exception=True)
    except serializers.ValidationError as error:
        raise WrongQuery(error.detail) from error
    values: dict[str, Any] = serializer.validated_data
    return values


def _ordering(*names: str) -> serializers.ChoiceField:
    choices = [*names, *[f"-{name}" for name in names]]
    return serializers.ChoiceField(
        choices, required=False, help_text="Field to sort by; prefix it with `-` for descending order."
    )


class PageQuery(StrictSerializer):
    """Filters and paging of a list; every parameter that is not in `beside` is a filter."""

    page = serializers.IntegerField(min_value=1, max_value=10**9, required=False)
    page_size = serializers.IntegerField(min_value=1, max_value=MAX_PAGE_SIZE, required=False)

    beside: ClassVar[tuple[str, ...]] = ("page", "page_size", "search", "ordering")

    @classmethod
    def conditions(cls, values: Mapping[str, Any]) -> Iterator[Q]:
        """The filter conditions of the given parameters."""
        for name, value in values.items():
            if name not in cls.beside:
                yield value if isinstance(value, Q) else Q((name, value))


class ListQuery(PageQuery):
    """Filters, search and paging of a list."""

    search = serializers.CharField(required=False, max_length=255, help_text="Search terms; every term must match.")


class ChoiceOfRows(serializers.ChoiceField):
    """A choice that maps to a filter condition, which may depend on the settings."""

    def __init__(self, choices: Iterable[str], condition: Callable[[str], Q], **options: Any) -> None:
        super().__init__([*choices], **options)
        self._condition = condition

    def to_internal_value(self, data: Any) -> Any:
        """Return the condition of a choice."""
        return self._condition(super().to_internal_value(data))


class EntityOrPattern(Exact):
    """An entity of a row, or a pattern such as `key:*` that entities match; maps to a filter condition."""

    def __init__(self, column: str) -> None:
        super().__init__(
            required=False,
            validators=[validate_identifier],
            help_text="An identifier, or a pattern such as `key:*` or `ip:10.0.0.0/8`: all that match it.",
        )
        self._column = column

    def run_validation(self, data: Any = empty) -> Any:
        """Return the condition of a valid identifier or pattern."""
        name = super().run_validation(data)
        addresses = Entity.objects.using(write_alias()).filter(identifier__startswith=ADDRESS).order_by()
        return matching(self._column, name, addresses.values_list("identifier", flat=True))


class ResourceQuery(ListQuery):
    """Parameters of the list of resources."""

    name = Exact(required=False)
    pool = Exact(source="pool__name", required=False)
    store = Exact(required=False, allow_blank=True, help_text="Store alias; empty for the default store.")
    ordering = _ordering("name")


class PriceQuery(ListQuery):
    """Parameters of the list of prices."""

    resource = Exact(required=False, help_text="The name or the pattern that the price is for.")
    member = Exact(required=False, allow_blank=True)
    unit = Exact(required=False)
    currency = Exact(required=False)
    since = DateTimeField(source="valid_from__gte", required=False, help_text="Valid from this time on, or later.")
    until = DateTimeField(source="valid_from__lt", required=False)
    ordering = _ordering("valid_from", "resource", "unit")


class PlanQuery(ListQuery):
    """Parameters of the list of plans."""

    name = Exact(required=False)
    ordering = _ordering("name", "priority")


class EntityQuery(ListQuery):
    """Parameters of the list of entities."""

    identifier = EntityOrPattern("identifier")
    parent = EntityOrPattern("parent__identifier")  # type: ignore[assignment]  # the framework takes fields out of the class
    plan = Exact(source="plan__name", required=False)
    blocked = serializers.BooleanField(required=False)
    unlimited = serializers.BooleanField(required=False)
    ordering = _ordering("identifier", "name")


class PolicyQuery(ListQuery):
    """Parameters of the list of policies."""

    resource = Exact(source="resource__name", required=False)
    entity = EntityOrPattern("entity__identifier")
    plan = Exact(source="plan__name", required=False)
    scope = ChoiceOfRows(PolicyScope.values, in_scope, required=False)
    holds = ChoiceOfRows(_HOLDS, _HOLDS.__getitem__, required=False)
    effect = serializers.ChoiceField(PolicyEffect.choices, required=False)
    enforcement = serializers.ChoiceField(Enforcement.choices, required=False)
    ordering = _ordering("updated_at", "created_at", "valid_from")


class PoolQuery(ListQuery):
    """Parameters of the list of pools."""

    name = Exact(required=False)
    ordering = _ordering("name")


class EndpointQuery(ListQuery):
    """Parameters of the list of endpoints."""

    resource = Exact(source="resource__name", required=False)
    enabled = serializers.BooleanField(required=False)
    ordering = _ordering("order", "name")


class AlertRuleQuery(ListQuery):
    """Parameters of the list of rules for alerts."""

    name = Exact(required=False)
    kind = serializers.ChoiceField(AlertKind.choices, required=False)
    enabled = serializers.BooleanField(required=False)
    ordering = _ordering("name", "created_at")


class AuditEventQuery(ListQuery):
    """Parameters of the audit log."""

    actor = serializers.CharField(required=False)
    source = serializers.CharField(required=False)  # type: ignore[assignment]  # the framework takes fields out of the class
    verb = serializers.ChoiceField(Verb.choices, required=False)
    object_type = serializers.CharField(required=False)
    object_id = serializers.CharField(required=False)
    since = DateTimeField(source="when__gte", required=False)
    until = DateTimeField(source="when__lt", required=False)
    ordering = _ordering("when")


class StatusQuery(StrictSerializer):
    """The resource and entity whose state is read."""

    resource = Exact(validators=[validate_resource_name])
    entity = Exact(required=False, validators=[validate_client])
    plan = Exact(
        required=False,
        max_length=MAX_PLAN_LENGTH,
        help_text="The plan that the request has, for an entity without one.",
    )


class ExplainQuery(StatusQuery):
    """The request to explain."""

    requested = serializers.ListField(
        child=serializers.RegexField(r"^[A-Za-z][A-Za-z0-9_.-]{0,63}:\d{1,12}(\.\d{1,3})?$"),
        required=False,
        help_text="Amounts by limit key, such as `tpm:500`; may be repeated.",
    )
    priority = Exact(
        required=False,
        validators=[validate_priority],
        help_text="The priority of the request; by default that of the plan or the resource.",
    )


class TimeQuery(PageQuery):
    """A time range: usage of the periods that begin in it."""

    period = serializers.ChoiceField(
        UsagePeriod.choices, required=False, help_text="Length of the periods; the default is `day`."
    )
    since = DateTimeField(
        required=False, help_text="Start of the range. Default: 30 days ago, or 48 hours ago for hourly periods."
    )
    until = DateTimeField(required=False)


class CountedForQuery(PageQuery):
    """Filters for usage and its costs."""

    resource = Exact(required=False)
    entity = Exact(
        required=False,
        allow_blank=True,
        validators=[validate_identifier],
        help_text="A client or a pattern such as `key:*`; empty for the site itself and shared limits.",
    )


class CountedQuery(CountedForQuery):
    """Filters for usage and rejections."""

    key = serializers.CharField(required=False, help_text="Limit key.")


class DenialQuery(CountedQuery):
    """Parameters of the list of rejections, by minute."""

    since = DateTimeField(required=False, help_text="Start of the range. Default: 48 hours ago.")
    until = DateTimeField(required=False)
    request_id = serializers.CharField(
        required=False, help_text="The id of a rejected request, as its response has it; from any time."
    )


class SpendQuery(CountedForQuery, TimeQuery):
    """Parameters of costs, with the fields to group them by."""

    plan = Exact(
        required=False, allow_blank=True, help_text="The plan by which clients were served; empty for those without."
    )
    by = serializers.ListField(
        child=serializers.ChoiceField([str(by) for by in By]),
        required=False,
        max_length=len(By),
        help_text="Field to group by, usage in addition to the limit key; may be repeated.",
    )


class UsageQuery(CountedQuery, SpendQuery):
    """Parameters of usage, with the fields to group it by."""

    cost = serializers.BooleanField(required=False, help_text="Add the cost of each row.")


class MeQuery(TimeQuery):
    """Parameters of the caller's own limits and usage."""

    beside = (*PageQuery.beside, "period", "since", "until")

    resource = Exact(source="name", required=False)
