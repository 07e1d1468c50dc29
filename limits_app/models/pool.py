"""Interchangeable suppliers of a resource: regions, accounts, keys."""

from __future__ import annotations

from typing import Final

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration, Written, check_sound
from limits_app.models.fields import ExactTextField
from limits_app.models.limit_columns import check_definitions
from limits_app.models.references import validate_config
from limits_app.models.validators import validate_json, validate_object, validate_resource_name, validate_text

__all__ = ["MAX_WEIGHT", "LoadBalancing", "Pool", "PoolMember"]

MAX_WEIGHT: Final = 10_000


class LoadBalancing(models.TextChoices):
    """Which member of a pool is asked first."""

    ROUND_ROBIN = "round_robin", _("round robin: one after the other")
    RANDOM = "random", _("random")
    WEIGHTED = "weighted", _("weighted: as often as its weight says")
    LEAST_LOADED = "least_loaded", _("least loaded: where the largest share is free")
    FAILOVER = "failover", _("failover: in their order, the next one when one is full")


class Pool(Configuration):
    """Interchangeable members, of which one serves each request."""

    sound = ("name",)

    name = ExactTextField(
        _("name"),
        max_length=64,
        unique=True,
        validators=[validate_resource_name],
        help_text=_("As the code calls it, such as “bedrock/claude”; it may be that of a resource. Case counts."),
    )
    load_balancing = models.CharField(
        _("load balancing"),
        max_length=16,
        choices=LoadBalancing.choices,
        default=LoadBalancing.ROUND_ROBIN,
        help_text=_("Which member is asked first."),
    )
    failover = models.BooleanField(
        _("failover"),
        default=True,
        help_text=_("When that one is full, the others are asked before anybody is refused or waits."),
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("What it is, for other administrators.")
    )

    class Meta(Configuration.Meta):
        verbose_name = _("pool")
        verbose_name_plural = _("pools")
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                name="limits_app_pool_has_name",
                condition=~Q(name=""),
                violation_error_message=_("Give the pool a name."),
            ),
            models.CheckConstraint(
                name="limits_app_pool_load_balancing",
                condition=Q(load_balancing__in=LoadBalancing.values),
                violation_error_message=_("The load balancing is one of those in the list."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Refuse limits of members that are no definitions, and secrets, however they were written."""
        super().check_written(written, using)
        config = PoolMember._meta.get_field("config")
        for before, now in written.values():
            if before.get("members") != now["members"]:
                check_definitions(limit for member in now["members"] for limit in member.get("limits", ()))
                for member in now["members"]:
                    check_sound(config, member.get("config", {}))


class PoolMember(Configuration):
    """One of those that can serve a request, with limits that all who use it share."""

    part_of = ("pool",)

    pool = models.ForeignKey(Pool, verbose_name=_("pool"), on_delete=models.CASCADE, related_name="members")
    name = ExactTextField(
        _("name"),
        max_length=100,
        validators=[validate_text],
        help_text=_("Such as “us-east-1/1”. What it has used is counted under this name."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)],
        help_text=_("How often it is asked first, compared with the others; only weighted pools read it."),
    )
    order = models.PositiveIntegerField(
        _("order"), default=100, help_text=_("Members stand in the pool from the lowest number up.")
    )
    config = models.JSONField(
        _("config"),
        default=dict,
        blank=True,
        validators=[validate_json, validate_object, validate_config],
        help_text=_(
            "What whoever it serves has to know, as a JSON object. Secrets are named and not written down: "
            '{"region": "us-east-1", "api_key": {"env": "BEDROCK_KEY"}}, or {"setting": "BEDROCK_KEY"}.'
        ),
    )
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Off, it serves nobody."))

    class Meta(Configuration.Meta):
        verbose_name = _("pool member")
        verbose_name_plural = _("pool members")
        ordering = ["pool_id", "order", "pk"]
        default_permissions = ()  # a member is a part of its pool, and who may change one may change the other
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "name"],
                name="limits_app_pool_member_one_per_name",
                violation_error_message=_("The pool has a member with this name already: change that one."),
            ),
            models.CheckConstraint(
                name="limits_app_pool_member_has_name",
                condition=~Q(name=""),
                violation_error_message=_("Give the member a name."),
            ),
            models.CheckConstraint(
                name="limits_app_pool_member_weight",
                condition=Q(weight__gte=1, weight__lte=MAX_WEIGHT),
                violation_error_message=_("A weight is 1 to 10000."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean_alone(self) -> None:
        """Write no config as an empty object."""
        self.config = self.config or {}
