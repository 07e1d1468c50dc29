"""Endpoints: the rules for URLs, which charge requests for resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models
from django.db.models import Q
from django.urls.converters import PathConverter
from django.urls.resolvers import RoutePattern
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration, check_validators
from limits_app.models.fields import ExactTextField
from limits_app.models.limit import validate_limits
from limits_app.models.resource import Resource
from limits_app.models.rule_limits import (
    make_resource,
    normalize_limits,
    remove_resource,
    write_limits,
)
from limits_app.models.snapshots import Snapshot
from limits_app.models.validators import (
    validate_amounts,
    validate_entities,
    validate_header,
    validate_json,
    validate_methods,
    validate_networks,
    validate_text,
    validate_view_name,
)

WILDCARD: Final = "*"
"""A segment of a path that matches any one segment; at the end of the path, everything below."""

_PATH_OR_VIEW_NAME: Final = _("Enter either a path or a view name.")
_LIMITS_OR_RESOURCE: Final = _("Enter either limits or a resource.")


class CountedBy(models.TextChoices):
    """Who is counted by a rule: what has a counter of its own."""

    ENTITY = "entity", _("the client: user, API key or IP address")
    USER = "user", _("the user")
    IP = "ip", _("the IP address")
    API_KEY = "api_key", _("the API key")
    HEADER = "header", _("a request header")
    SESSION = "session", _("the session")
    EVERYONE = "everyone", _("everyone together")


def route_pattern(path: str) -> RoutePattern:
    """Compile a path: exact, with wildcards, or in the syntax of `path()`.

    It is matched against the path of a request without its first slash. Raises ImproperlyConfigured or re.error for a
    path that `validate_path` rejects.
    """
    *before, last = path.removeprefix("/").split("/")
    is_prefix = last == WILDCARD
    segments = [*before, "" if is_prefix else last]
    route = "/".join(f"<wildcard_{n}>" if one == WILDCARD else one for n, one in enumerate(segments))
    return RoutePattern(route, is_endpoint=not is_prefix)


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text that are not empty, without spaces around them, each once."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def validate_path(value: str) -> None:
    """Reject invalid paths, and patterns that could be slow to match."""
    validate_text(value)
    if "://" in value or "?" in value or "#" in value:
        raise ValidationError(gettext("Enter only the path, such as “/api/orders/”, without host and query string."))
    if any(WILDCARD in segment and segment != WILDCARD for segment in value.split("/")):
        raise ValidationError(gettext("A “*” must be a whole segment, such as in “/api/*” or “/api/*/orders/”."))
    try:
        pattern = route_pattern(value)
        re.compile(pattern.regex)  # the pattern is compiled on first use; this detects duplicate names
    except (ImproperlyConfigured, re.error) as error:
        raise ValidationError(gettext("This is not a valid route: %(error)s") % {"error": error}) from error
    for warning in pattern.check():
        raise ValidationError(warning.msg)
    crossing = sum(isinstance(converter, PathConverter) for converter in pattern.converters.values())
    if crossing > 1 or any(segment.count("<") > 1 for segment in value.split("/")):
        raise ValidationError(
            gettext("A route has at most one “<path:…>”, and one parameter between two slashes: use a view name.")
        )


class Endpoint(Configuration):
    """A rule: requests to a path or view use an amount of a resource.

    A request is charged by all rules that match it and do not exempt it, in their order, through the first one with
    `stop`. Either all of them charge it, or it is rejected and none does.
    """

    name = models.CharField(_("name"), max_length=100, validators=[validate_text], help_text=_("Display name."))
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("The purpose of this rule.")
    )
    path = ExactTextField(
        _("path"),
        max_length=255,
        blank=True,
        validators=[validate_path],
        help_text=_(
            "An exact path such as “/api/orders/”, a route such as “/api/orders/<int:pk>/”, or a path with wildcards: "
            "“/api/*” is everything below “/api/”, and “/api/*/orders/” has any one segment in place of “*”."
        ),
    )
    view_name = ExactTextField(
        _("view name"),
        max_length=255,
        blank=True,
        validators=[validate_view_name],
        help_text=_("The view name for reverse(), such as “orders:detail”, instead of a path."),
    )
    methods = models.CharField(
        _("methods"),
        max_length=100,
        blank=True,
        validators=[validate_methods],
        help_text=_("Such as “GET, POST”; all methods when left empty. CORS preflight requests are not charged."),
    )
    counted_by = models.CharField(
        _("counted by"),
        max_length=16,
        choices=CountedBy.choices,
        default=CountedBy.ENTITY,
        help_text=_(
            "Each of these has a counter of its own. Where a request has no user, API key, header or session, its "
            "IP address is counted. Anyone can change a header or begin a new session: count by them only what a "
            "proxy sets or a log-in protects."
        ),
    )
    header = models.CharField(
        _("header to count by"),
        max_length=100,
        blank=True,
        validators=[validate_header],
        help_text=_("The request header to count by, such as “X-Tenant”; only for “a request header”."),
    )
    limits = models.CharField(
        _("limits"),
        max_length=500,
        blank=True,
        validators=[validate_text, validate_limits],
        help_text=_(
            "Limits of this rule alone, such as “60/min, tokens=1M/day”. After a pause, 60/min allows up to 120 "
            "requests within a minute, and 60/min:sliding_window never more than 60. A resource and a policy are made "
            "for them."
        ),
    )
    limits_resource = ExactTextField(_("resource of the limits"), max_length=64, blank=True, default="", editable=False)
    """The name of the resource that was made for the limits."""
    resource = models.ForeignKey(
        Resource,
        verbose_name=_("resource"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="endpoints",
        help_text=_("Count these requests with all others of a resource, instead of by limits of this rule alone."),
    )
    amounts = models.JSONField(
        _("amounts per request"),
        default=dict,
        blank=True,
        validators=[validate_json, validate_amounts],
        help_text=_('How much one request uses, by limit key, such as {"tpm": 500}; the default amounts when empty.'),
    )
    exempt_staff = models.BooleanField(_("exempt staff"), default=False)
    exempt_superusers = models.BooleanField(_("exempt superusers"), default=False)
    exempt_groups = models.TextField(
        _("exempt groups"),
        blank=True,
        validators=[validate_text],
        help_text=_("Names of groups whose users are not charged, one per line."),
    )
    exempt_networks = models.TextField(
        _("exempt networks"),
        blank=True,
        validators=[validate_networks],
        help_text=_("IP addresses and networks such as “10.0.0.0/8” that are not charged, one per line."),
    )
    exempt_entities = models.TextField(
        _("exempt entities"),
        blank=True,
        validators=[validate_text, validate_entities],
        help_text=_("Entities such as “user:42” that are not charged, one per line."),
    )
    order = models.PositiveIntegerField(
        _("order"),
        default=100,
        help_text=_("Rules with smaller numbers come first. A request counts in every rule that it matches."),
    )
    stop = models.BooleanField(
        _("skip later rules"),
        default=False,
        help_text=_("Requests that count in this rule do not count in later ones."),
    )
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Uncheck to disable this rule."))

    class Meta(Configuration.Meta):
        verbose_name = _("URL rule")
        verbose_name_plural = _("URL rules")
        ordering = ["order", "pk"]
        constraints = [
            models.CheckConstraint(name="limits_app_endpoint_has_name", condition=~Q(name="")),
            models.CheckConstraint(
                name="limits_app_endpoint_path_or_view_name",
                condition=(Q(path="") & ~Q(view_name="")) | (~Q(path="") & Q(view_name="")),
                violation_error_message=_PATH_OR_VIEW_NAME,
            ),
            models.CheckConstraint(
                name="limits_app_endpoint_limits_or_resource",
                condition=Q(resource=None) & ~Q(limits="") | Q(resource__isnull=False, limits=""),
                violation_error_message=_LIMITS_OR_RESOURCE,
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean_alone(self) -> None:
        """Normalize the methods (upper case, sorted, without duplicates), empty amounts, and the exemptions."""
        self.amounts = self.amounts or {}
        for name in ("exempt_groups", "exempt_networks", "exempt_entities"):
            setattr(self, name, "\n".join(lines_of(getattr(self, name))))
        self.methods = ",".join(sorted(self.method_set))
        self.limits = normalize_limits(self.limits)
        if bool(self.limits) is (self.resource is not None):
            raise ValidationError({"limits": _LIMITS_OR_RESOURCE})
        if bool(self.path) is bool(self.view_name):
            raise ValidationError({"path": _PATH_OR_VIEW_NAME})
        if (self.counted_by == CountedBy.HEADER) is not bool(self.header):
            raise ValidationError({"header": _("Enter a header for “counted by: a request header”, and only then.")})

    @classmethod
    def complete_written(cls, before: Mapping[Any, Snapshot], using: str) -> None:
        """Write the resources and policies for the limits of changed rules, and remove those that are not needed."""
        rows = cls._base_manager.using(using)
        found = rows.in_bulk([*before])
        for key, state in before.items():
            row, made = found.get(key), state.get("limits_resource", "")
            if row is None or not row.limits:
                remove_resource(made, using) if made else None
                wanted = ""
            else:
                check_validators(cls._meta.get_field("limits"), row.limits)
                # The state before precedes: a row that code has made and kept does not know its resource.
                known = made or row.limits_resource
                is_taken = rows.filter(limits_resource=known).exclude(pk=key).exists()
                resource = make_resource(row.name, "" if is_taken else known, using)
                write_limits(resource, row.limits, using)
                wanted = resource.name
            if row is not None and row.limits_resource != wanted:
                rows.filter(pk=key).update(limits_resource=wanted)

    @property
    def resource_name(self) -> str:
        """The name of the resource that it charges."""
        return self.limits_resource if self.resource is None else self.resource.name

    @property
    def method_set(self) -> frozenset[str]:
        """The methods that it matches; all if empty."""
        words = (word.strip().upper() for word in self.methods.split(","))
        return frozenset(word for word in words if word)

    @property
    def has_exemptions(self) -> bool:
        """Whether there are requests that it matches and does not charge."""
        lists = self.exempt_groups, self.exempt_networks, self.exempt_entities
        return self.exempt_staff or self.exempt_superusers or any(lists)

    def hides(self, later: Endpoint) -> bool:
        """Whether it stops every request that a later rule matches; paths are compared as text."""
        if not self.stop or self.has_exemptions:
            return False
        same = (self.path.lstrip("/"), self.view_name) == (later.path.lstrip("/"), later.view_name)
        is_first = (self.order, self.pk) < (later.order, later.pk)
        return (
            same
            and is_first
            and (not self.method_set or (bool(later.method_set) and self.method_set >= later.method_set))
        )

    def hidden_by(self) -> Endpoint | None:
        """The earlier enabled rule that stops every request of this saved rule, if any."""
        others = (
            Endpoint.objects.using(self._state.db).filter(enabled=True, view_name=self.view_name).exclude(pk=self.pk)
        )
        return next((one for one in others if one.hides(self)), None) if self.enabled else None
