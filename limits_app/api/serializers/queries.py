"""What addresses may ask for: filters, pages and orders, each with a type; anything else is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from django.db.models import Q
from django.http import QueryDict
from rest_framework import serializers

from limits_app.api.problems import WrongQuery
from limits_app.api.serializers.fields import DateTimeField, Exact, StrictSerializer
from limits_app.models import Enforcement, Period, PolicyEffect, PolicyScope, Verb
from limits_app.models.validators import validate_identifier, validate_resource_name
from limits_app.usage import By

__all__ = [
    "AuditEventQuery",
    "DenialQuery",
    "EndpointQuery",
    "EntityQuery",
    "ExplainQuery",
    "ListQuery",
    "MeQuery",
    "PolicyQuery",
    "PoolQuery",
    "ResourceQuery",
    "StatusQuery",
    "UsageQuery",
    "read",
]

MOST_ON_A_PAGE: Final = 200

_SCOPES: Final[Mapping[str, Q]] = {
    PolicyScope.SYSTEM: Q(resource=None, entity=None),
    PolicyScope.RESOURCE: Q(resource__isnull=False, entity=None),
    PolicyScope.ENTITY: Q(resource=None, entity__isnull=False),
    PolicyScope.ENTITY_ON_RESOURCE: Q(resource__isnull=False, entity__isnull=False),
}
_HOLDS: Final[Mapping[str, Q]] = {
    "always": Q(valid_from=None, weekly_hours=""),
    "dates": Q(valid_from__isnull=False),
    "hours": ~Q(weekly_hours=""),
}


def read(query: type[serializers.Serializer[Any]], asked: QueryDict) -> dict[str, Any]:
    """Give the parameters of an address as values; WrongQuery says of each what is wrong."""
    fields = query().fields
    plain = {
        name: values if isinstance(fields.get(name), serializers.ListField) else values[-1]
        for name, values in asked.lists()
    }
    serializer = query(data=plain)
    try:
        serializer.is_valid(raise_exception=True)
    except serializers.ValidationError as error:
        raise WrongQuery(error.detail) from error
    values: dict[str, Any] = serializer.validated_data
    return values


def _search() -> serializers.CharField:
    return serializers.CharField(required=False, max_length=255, help_text="Words that all must be found.")


def _ordering(*names: str) -> serializers.ChoiceField:
    choices = [*names, *[f"-{name}" for name in names]]
    return serializers.ChoiceField(choices, required=False, help_text="What goes first; `-` turns the order round.")


class ListQuery(StrictSerializer):
    """Which rows, in which order, and which part of them. Whatever is about none of these is a filter."""

    page = serializers.IntegerField(min_value=1, max_value=10**9, required=False)
    page_size = serializers.IntegerField(min_value=1, max_value=MOST_ON_A_PAGE, required=False)

    beside: ClassVar[tuple[str, ...]] = ("page", "page_size", "search", "ordering")

    @classmethod
    def conditions(cls, values: Mapping[str, Any]) -> Iterator[Q]:
        """The filters that were given."""
        for name, value in values.items():
            if name not in cls.beside:
                yield value if isinstance(value, Q) else Q((name, value))


class ChoiceOfRows(serializers.ChoiceField):
    """A word that stands for a condition."""

    def __init__(self, conditions: Mapping[str, Q], **options: Any) -> None:
        super().__init__([str(name) for name in conditions], **options)
        self._conditions = conditions

    def to_internal_value(self, data: Any) -> Any:
        """Give the condition."""
        return self._conditions[super().to_internal_value(data)]


class ResourceQuery(ListQuery):
    """Which resources."""

    name = Exact(required=False)
    pool = Exact(source="pool__name", required=False)
    store = Exact(required=False, allow_blank=True, help_text="Empty for those in the default one.")
    search = _search()
    ordering = _ordering("name")


class EntityQuery(ListQuery):
    """Which entities."""

    identifier = Exact(required=False)
    parent = Exact(source="parent__identifier", required=False)  # type: ignore[assignment]  # the framework takes fields out of the class
    blocked = serializers.BooleanField(required=False)
    unlimited = serializers.BooleanField(required=False)
    search = _search()
    ordering = _ordering("identifier", "name")


class PolicyQuery(ListQuery):
    """Which policies."""

    resource = Exact(source="resource__name", required=False)
    entity = Exact(source="entity__identifier", required=False)
    scope = ChoiceOfRows(_SCOPES, required=False)
    holds = ChoiceOfRows(_HOLDS, required=False)
    effect = serializers.ChoiceField(PolicyEffect.choices, required=False)
    enforcement = serializers.ChoiceField(Enforcement.choices, required=False)
    search = _search()
    ordering = _ordering("updated_at", "created_at", "valid_from")


class PoolQuery(ListQuery):
    """Which pools."""

    name = Exact(required=False)
    search = _search()
    ordering = _ordering("name")


class EndpointQuery(ListQuery):
    """Which endpoints."""

    resource = Exact(source="resource__name", required=False)
    enabled = serializers.BooleanField(required=False)
    search = _search()
    ordering = _ordering("order", "name")


class AuditEventQuery(ListQuery):
    """Which events of the audit log."""

    actor = serializers.CharField(required=False)
    source = serializers.CharField(required=False)  # type: ignore[assignment]  # the framework takes fields out of the class
    verb = serializers.ChoiceField(Verb.choices, required=False)
    object_type = serializers.CharField(required=False)
    object_id = serializers.CharField(required=False)
    since = DateTimeField(source="when__gte", required=False)
    until = DateTimeField(source="when__lt", required=False)
    search = _search()
    ordering = _ordering("when")


class StatusQuery(StrictSerializer):
    """Whose limits."""

    resource = Exact(validators=[validate_resource_name])
    entity = Exact(required=False, validators=[validate_identifier])


class ExplainQuery(StatusQuery):
    """Which request."""

    requested = serializers.ListField(
        child=serializers.RegexField(r"^[A-Za-z][A-Za-z0-9_.-]{0,63}:\d{1,12}(\.\d{1,3})?$"),
        required=False,
        help_text="Amounts by limit key, such as `tpm:500`; may be given several times.",
    )


class TimeQuery(ListQuery):
    """Usage of which time: the periods that begin in it."""

    period = serializers.ChoiceField(Period.choices, required=False, help_text="Whose snapshots; `day` where not said.")
    since = DateTimeField(
        required=False, help_text="The last 30 days where not said, or 48 hours where the period is an hour."
    )
    until = DateTimeField(required=False)


class CountedQuery(ListQuery):
    """Of whose use of what."""

    resource = Exact(required=False)
    entity = Exact(required=False, allow_blank=True, help_text="Empty: the site itself, and what all share.")
    key = serializers.CharField(required=False, help_text="The key of a limit.")


class DenialQuery(CountedQuery):
    """Which refusals: those of the minutes that begin in a time."""

    since = DateTimeField(required=False, help_text="The last 48 hours where not said.")
    until = DateTimeField(required=False)


class UsageQuery(CountedQuery, TimeQuery):
    """Which usage, and what it is told apart by."""

    by = serializers.ListField(
        child=serializers.ChoiceField([str(one) for one in By]),
        required=False,
        max_length=len(By),
        help_text="What it is told apart by besides its limit; may be given several times.",
    )


class MeQuery(TimeQuery):
    """Which of one's own limits, and which usage of them."""

    beside = (*ListQuery.beside, "period", "since", "until")

    resource = Exact(source="name", required=False)
