"""Endpoints: the rules for URLs, which charge requests for resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app.engine import check_shared
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models.base import Configuration, check_validators
from limits_app.models.fields import ExactTextField
from limits_app.models.limit import noted_limits, validate_limits
from limits_app.models.priority_field import priority_field
from limits_app.models.resource import Resource
from limits_app.models.rule_fields import (
    parts_of,
    validate_block,
    validate_cost,
    validate_error_status,
    validate_parts,
    validate_statuses,
)
from limits_app.models.rule_resources import make_resource, remove_resource, unused_name, write_limits
from limits_app.models.snapshots import Snapshot
from limits_app.models.validators import (
    validate_amounts,
    validate_entities,
    validate_header,
    validate_json,
    validate_methods,
    validate_networks,
    validate_path,
    validate_resource_name,
    validate_text,
    validate_view_name,
)

_PATH_OR_VIEW_NAME: Final = _("Enter either a path or a view name.")
_LIMITS_OR_RESOURCE: Final = _("Enter either limits or a resource.")


WITHOUT_CONDITIONS: Final[Mapping[str, object]] = {
    "combined_with": "",
    "responses": "",
    "cost": "",
    "block_for": "",
    "refusal_status": None,
    "refusal_body": "",
}
"""The fields of a rule that counts every request by its limits alone."""


class CountedBy(models.TextChoices):
    """Who is counted by a rule: what has its own counter."""

    ENTITY = "entity", _("the client: user, API key or IP address")
    USER = "user", _("the user")
    IP = "ip", _("the IP address")
    API_KEY = "api_key", _("the API key")
    HEADER = "header", _("a request header")
    SESSION = "session", _("the session")
    EVERYONE = "everyone", _("everyone together")


_CHOSEN: Final = (CountedBy.HEADER, CountedBy.SESSION)
"""What a client can choose again for each request."""


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text that are not empty, without spaces around them, each once."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


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
        help_text=_(
            "Such as “GET, POST”; all methods when left empty. Requests by other methods are not counted, also where "
            "the view answers them: function views answer every method."
        ),
    )
    counted_by = models.CharField(
        _("counted by"),
        max_length=16,
        choices=CountedBy.choices,
        default=CountedBy.ENTITY,
        help_text=_(
            "Each of these has its own counter. Where a request has no user, API key, header or session, its "
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
    combined_with = models.TextField(
        _("combined with"),
        blank=True,
        default="",
        max_length=600,
        validators=[validate_text, validate_parts],
        help_text=_(
            "Other parts of the request that are counted together with it, one per line: “header:X-Device”, "
            "“cookie:device”, “query:q”, “form:username”, “path:pk” (a parameter of the URL) or “ip”. Each value has a "
            "counter, and all values of one client together have the limits 1,024 times. Requests without the part "
            "have one counter together."
        ),
    )
    responses = models.CharField(
        _("count only responses"),
        max_length=100,
        blank=True,
        default="",
        validators=[validate_statuses],
        help_text=_(
            "Such as “401,403”, “4xx” or “errors”; all responses when left empty. A request is counted when it begins, "
            "and no longer once another response was made: so the limit is also the number of these requests at the "
            "same time."
        ),
    )
    cost = models.CharField(
        _("cost from the response"),
        max_length=255,
        blank=True,
        default="",
        validators=[validate_cost],
        help_text=_(
            "How much a request has used: a header of the response such as “header:X-Cost”, or a function of the site "
            "with @cost_function such as “shop.costs.of_report”. It replaces the amounts per request afterwards."
        ),
    )
    block_for = models.CharField(
        _("block for"),
        max_length=16,
        blank=True,
        default="",
        validators=[validate_block],
        help_text=_(
            "Such as “10m”: once the limit was exceeded, all further requests that this rule counts are rejected until "
            "then. Further requests do not extend the block. A reset ends it."
        ),
    )
    refusal_status = models.PositiveSmallIntegerField(
        _("status of rejections"),
        null=True,
        blank=True,
        validators=[validate_error_status],
        help_text=_("The status in place of 429."),
    )
    refusal_body = models.TextField(
        _("body of rejections"),
        blank=True,
        default="",
        max_length=4000,
        validators=[validate_text],
        help_text=_("The body in place of the usual one: a JSON object, or plain text."),
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
    limits_resource = ExactTextField(
        _("resource of the limits"),
        max_length=64,
        blank=True,
        default="",
        editable=False,
        validators=[validate_resource_name],
        help_text="The name of the resource that is made for the limits.",  # of the schema of limits files
    )
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
    request_priority = priority_field(
        _("One of LIMITS['PRIORITIES'], for requests of this rule; when empty, that of the plan, or of the resource.")
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
            models.CheckConstraint(
                name="limits_app_endpoint_fields",
                condition=~Q(name="")
                & (Q(path="") & ~Q(view_name="") | ~Q(path="") & Q(view_name=""))
                & (Q(resource=None) & ~Q(limits="") | Q(resource__isnull=False, limits="")),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def clean_alone(self) -> None:
        """Normalize the methods (upper case, sorted, without duplicates), empty amounts, and the exemptions."""
        self.amounts = self.amounts or {}
        for name in ("exempt_groups", "exempt_networks", "exempt_entities"):
            setattr(self, name, "\n".join(lines_of(getattr(self, name))))
        self.methods = ",".join(sorted(self.method_set))
        self.limits = " ".join(self.limits.split())
        self.combined_with = "\n".join(lines_of(self.combined_with))
        self.responses = ",".join(dict.fromkeys(filter(None, map(str.strip, self.responses.lower().split(",")))))
        self.block_for, self.cost = self.block_for.strip(), self.cost.strip()
        if bool(self.limits) is (self.resource is not None):
            raise ValidationError({"limits": _LIMITS_OR_RESOURCE})
        if self.counted_by == CountedBy.EVERYONE:
            self._check_shared_limits()
        if bool(self.path) is bool(self.view_name):
            raise ValidationError({"path": _PATH_OR_VIEW_NAME})
        if (self.counted_by == CountedBy.HEADER) is not bool(self.header):
            raise ValidationError(
                {"header": _("Enter a header when counting by request header; leave it empty otherwise.")}
            )

    def _check_shared_limits(self) -> None:
        try:
            for noted in noted_limits(self.limits) if self.limits else ():
                check_shared(noted.limit, shared=True)
        except InvalidLimit as error:
            raise ValidationError({"limits": str(error)}) from error

    @classmethod
    def complete_written(cls, before: Mapping[Any, Snapshot], using: str) -> None:
        """Write the resources and policies for the limits of changed rules, and remove those that are not needed."""
        rows = cls._base_manager.using(using)
        stored = rows.in_bulk([*before])
        ended = {state.get("limits_resource", "") for state in before.values()}
        for key, state in before.items():
            row, made = stored.get(key), state.get("limits_resource", "")
            if row is None or not row.limits:
                remove_resource(made, using) if made else None
                wanted_name = ""
            else:
                check_validators(cls._meta.get_field("limits"), row.limits)
                # The state before precedes: a row that code has made and kept does not know its resource.
                present = made or row.limits_resource
                is_taken = rows.filter(limits_resource=present).exclude(pk=key).exists()
                name = unused_name(row.name, ended, using) if is_taken or not present else present
                resource = make_resource(name, row.name, using)
                write_limits(resource, row.limits, using)
                wanted_name = resource.name
            if row is not None and row.limits_resource != wanted_name:
                rows.filter(pk=key).update(limits_resource=wanted_name)

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
    def has_conditions(self) -> bool:
        """Whether more than who is counted and the limits decides on a request, or on the answer to a rejection."""
        return any(getattr(self, name) != value for name, value in WITHOUT_CONDITIONS.items())

    @property
    def needs_response(self) -> bool:
        """Whether it counts by the response, so that it does not apply where nobody reports one."""
        return bool(self.responses or self.cost)

    @property
    def is_escaped(self) -> bool:
        """Whether a client can change what it is counted by, and so get the limit many times."""
        return any(part.is_chosen for part in parts_of(self.combined_with))

    @property
    def counts_by_choice(self) -> bool:
        """Whether it counts by a header or a session, of which a client can send a new one with each request."""
        return self.counted_by in _CHOSEN

    def is_bounded(self) -> bool:
        """Whether another enabled rule for the same requests counts a client whatever it sends."""
        others = Endpoint.objects.using(self._state.db or router.db_for_read(Endpoint)).filter(
            enabled=True, path=self.path, view_name=self.view_name
        )
        fixed = others.exclude(pk=self.pk).exclude(counted_by__in=_CHOSEN)
        return any(not rule.is_escaped for rule in fixed)

    @property
    def undoes_in_buckets(self) -> bool:
        """Whether its limits are undone less than fully for responses that do not count; see `Acquisition.undo`."""
        limits = [noted.limit for noted in noted_limits(self.limits)] if self.responses and self.limits else []
        return any(isinstance(limit, RateLimit | CallLimit) and limit.algorithm.takes_burst for limit in limits)

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
        return next((rule for rule in others if rule.hides(self)), None) if self.enabled else None
