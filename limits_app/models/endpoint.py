"""Endpoints: which requests use which resource."""

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

_PATH_OR_VIEW_NAME: Final = _("Give either a path or the name of a view.")


def route_pattern(path: str) -> RoutePattern:
    """Compile a path, exact or in the syntax of `path()`; match it against a request's path without its first slash.

    Raises ImproperlyConfigured or re.error for a path that `validate_path` refuses.
    """
    return RoutePattern(path.removeprefix("/"), is_endpoint=True)


def validate_path(value: str) -> None:
    """Refuse invalid paths, and patterns whose matching could take long."""
    validate_text(value)
    if "://" in value or "?" in value or "#" in value:
        raise ValidationError(gettext("Write the path alone, such as “/api/orders/”: no host and no query."))
    try:
        pattern = route_pattern(value)
        re.compile(pattern.regex)  # the pattern compiles itself on first use, so that a name given twice shows here
    except (ImproperlyConfigured, re.error) as error:
        raise ValidationError(gettext("This is no route: %(error)s") % {"error": error}) from error
    for warning in pattern.check():
        raise ValidationError(warning.msg)
    crossing = sum(isinstance(converter, PathConverter) for converter in pattern.converters.values())
    if crossing > 1 or any(segment.count("<") > 1 for segment in value.split("/")):
        raise ValidationError(
            gettext("A route has at most one “<path:…>”, and one parameter between two slashes: use a view name.")
        )


class Endpoint(Configuration):
    """A rule about requests: those to this path or view use so much of a resource."""

    name = models.CharField(
        _("name"), max_length=100, validators=[validate_text], help_text=_("What people call this rule.")
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("Why there is such a rule.")
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
        help_text=_("Instead of a path: the view as reverse() knows it, such as “orders:detail”."),
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
        help_text=_("What the requests use."),
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
        help_text=_("Rules are tried from the lowest number up, and the first that fits a request counts."),
    )
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Off, the rule is passed over."))

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
        """Write the methods in one way (upper case, each once, in order), and no amounts as an empty object."""
        self.amounts = self.amounts or {}
        self.methods = ",".join(sorted(self.method_set))
        if bool(self.path) is bool(self.view_name):
            raise ValidationError({"path": _PATH_OR_VIEW_NAME})

    @property
    def method_set(self) -> frozenset[str]:
        """The methods it is about; all when empty."""
        words = (word.strip().upper() for word in self.methods.split(","))
        return frozenset(word for word in words if word)

    def hides(self, later: Endpoint) -> bool:
        """Whether it takes every request of a rule that is tried after it; paths are compared as they are written."""
        same = (self.path.lstrip("/"), self.view_name) == (later.path.lstrip("/"), later.view_name)
        is_first = (self.order, self.pk) < (later.order, later.pk)
        return (
            same
            and is_first
            and (not self.method_set or (bool(later.method_set) and self.method_set >= later.method_set))
        )

    def hidden_by(self) -> Endpoint | None:
        """The enabled rule that takes every request of this one, which is saved, before it is tried."""
        others = (
            Endpoint.objects.using(self._state.db).filter(enabled=True, view_name=self.view_name).exclude(pk=self.pk)
        )
        return next((one for one in others if one.hides(self)), None) if self.enabled else None
