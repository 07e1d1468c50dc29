"""Endpoints: rules that map requests to resources."""

from __future__ import annotations

import re
from typing import Final

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models
from django.db.models import Q
from django.urls.converters import PathConverter
from django.urls.resolvers import RoutePattern
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField
from limits_app.models.resource import Resource
from limits_app.models.validators import (
    validate_amounts,
    validate_json,
    validate_methods,
    validate_text,
    validate_view_name,
)

__all__ = ["Endpoint", "route_pattern", "validate_path"]

_PATH_OR_VIEW_NAME: Final = _("Enter either a path or a view name.")


def route_pattern(path: str) -> RoutePattern:
    """Compile a path, exact or in the syntax of `path()`; match it against a request's path without its first slash.

    Raises ImproperlyConfigured or re.error for a path that `validate_path` rejects.
    """
    return RoutePattern(path.removeprefix("/"), is_endpoint=True)


def validate_path(value: str) -> None:
    """Reject invalid paths, and patterns that could be slow to match."""
    validate_text(value)
    if "://" in value or "?" in value or "#" in value:
        raise ValidationError(gettext("Enter only the path, such as “/api/orders/”, without host and query string."))
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
    """A rule: requests to a path or view use an amount of a resource."""

    name = models.CharField(_("name"), max_length=100, validators=[validate_text], help_text=_("Display name."))
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("The purpose of this rule.")
    )
    path = ExactTextField(
        _("path"),
        max_length=255,
        blank=True,
        validators=[validate_path],
        help_text=_("An exact path such as “/api/orders/”, or a route such as “/api/orders/<int:pk>/”."),
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
    resource = models.ForeignKey(
        Resource,
        verbose_name=_("resource"),
        on_delete=models.PROTECT,
        related_name="endpoints",
        help_text=_("The resource that matching requests use."),
    )
    amounts = models.JSONField(
        _("amounts"),
        default=dict,
        blank=True,
        validators=[validate_json, validate_amounts],
        help_text=_('How much one request uses, by limit key, such as {"tpm": 500}; the default amounts when empty.'),
    )
    order = models.PositiveIntegerField(
        _("order"),
        default=100,
        help_text=_("Rules are tried in ascending order; the first one that matches a request applies."),
    )
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Uncheck to disable this rule."))

    class Meta(Configuration.Meta):
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
        ordering = ["order", "pk"]
        constraints = [
            models.CheckConstraint(name="limits_app_endpoint_has_name", condition=~Q(name="")),
            models.CheckConstraint(
                name="limits_app_endpoint_path_or_view_name",
                condition=(Q(path="") & ~Q(view_name="")) | (~Q(path="") & Q(view_name="")),
                violation_error_message=_PATH_OR_VIEW_NAME,
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean_alone(self) -> None:
        """Normalize the methods (upper case, sorted, without duplicates), and empty amounts."""
        self.amounts = self.amounts or {}
        self.methods = ",".join(sorted(self.method_set))
        if bool(self.path) is bool(self.view_name):
            raise ValidationError({"path": _PATH_OR_VIEW_NAME})

    @property
    def method_set(self) -> frozenset[str]:
        """The methods that it matches; all if empty."""
        words = (word.strip().upper() for word in self.methods.split(","))
        return frozenset(word for word in words if word)

    def hides(self, later: Endpoint) -> bool:
        """Whether it matches every request of a later rule; paths are compared as text."""
        same = (self.path.lstrip("/"), self.view_name) == (later.path.lstrip("/"), later.view_name)
        is_first = (self.order, self.pk) < (later.order, later.pk)
        return (
            same
            and is_first
            and (not self.method_set or (bool(later.method_set) and self.method_set >= later.method_set))
        )

    def hidden_by(self) -> Endpoint | None:
        """The earlier enabled rule that matches every request of this saved rule, if any."""
        others = (
            Endpoint.objects.using(self._state.db).filter(enabled=True, view_name=self.view_name).exclude(pk=self.pk)
        )
        return next((one for one in others if one.hides(self)), None) if self.enabled else None
