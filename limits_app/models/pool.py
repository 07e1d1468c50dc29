"""Pools and their members, and their conversion to immutable values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from limits_app.acquiring import Cooling
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limits import LimitDefinition
from limits_app.models.base import Configuration, Written, check_validators
from limits_app.models.fields import ExactTextField
from limits_app.models.limit_rules import check_definitions, stored_definition
from limits_app.models.own_queries import known_time_zones, own_query, read
from limits_app.models.validators import (
    validate_config,
    validate_json,
    validate_object,
    validate_resource_name,
    validate_text,
)

logger = logging.getLogger("limits_app")

MAX_WEIGHT: Final = 10_000


class LoadBalancing(models.TextChoices):
    """How the first member of a pool is chosen."""

    ROUND_ROBIN = "round_robin", _("round robin: in turn")
    RANDOM = "random", _("random")
    WEIGHTED = "weighted", _("weighted: in proportion to the weights")
    LEAST_LOADED = "least_loaded", _("least loaded: the member with the largest free share")
    FAILOVER = "failover", _("failover: in order, the next one if one is full")


class Pool(Configuration):
    """Interchangeable members, of which one serves each request."""

    always_validated = ("name",)

    name = ExactTextField(
        _("name"),
        max_length=64,
        unique=True,
        validators=[validate_resource_name],
        help_text=_("The name in code, such as “bedrock/claude”; it may be the name of a resource. Case-sensitive."),
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("A description for other administrators.")
    )
    load_balancing = models.CharField(
        _("load balancing"),
        max_length=16,
        choices=LoadBalancing.choices,
        default=LoadBalancing.ROUND_ROBIN,
        help_text=_("How the first member for a request is chosen."),
    )
    failover = models.BooleanField(
        _("failover"),
        default=True,
        help_text=_("If the first member is full, try the others before the request is rejected or waits."),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("pool")
        verbose_name_plural = _("pools")
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                name="limits_app_pool_fields", condition=~Q(name="") & Q(load_balancing__in=LoadBalancing.values)
            )
        ]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def check_written(cls, written: Written, using: str) -> None:
        """Reject invalid limits of members, and secrets in plain text, on every write."""
        super().check_written(written, using)
        config = PoolMember._meta.get_field("config")
        for before, now in written.values():
            if before.get("members") != now["members"]:
                check_definitions(limit for member in now["members"] for limit in member.get("limits", ()))
                for member in now["members"]:
                    check_validators(config, member.get("config", {}))


class PoolMember(Configuration):
    """A member, with limits that all its users share."""

    part_of = ("pool",)

    pool = models.ForeignKey(Pool, verbose_name=_("pool"), on_delete=models.CASCADE, related_name="members")
    name = ExactTextField(
        _("name"),
        max_length=100,
        validators=[validate_text],
        help_text=_("Such as “us-east-1/1”. Its usage is counted under this name."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WEIGHT)],
        help_text=_("How often it is chosen first, relative to the other members. Only for weighted pools."),
    )
    order = models.PositiveIntegerField(
        _("order"), default=100, help_text=_("Members with smaller numbers come first.")
    )
    config = models.JSONField(
        _("config"),
        default=dict,
        blank=True,
        validators=[validate_json, validate_object, validate_config],
        help_text=_(
            "Data for the code that uses the member, as a JSON object. Refer to secrets instead of storing them: "
            '{"region": "us-east-1", "api_key": {"env": "BEDROCK_KEY"}}, or {"setting": "BEDROCK_KEY"}.'
        ),
    )
    enabled = models.BooleanField(_("enabled"), default=True, help_text=_("Uncheck to disable this member."))

    class Meta(Configuration.Meta):
        verbose_name = _("pool member")
        verbose_name_plural = _("pool members")
        ordering = ["pool_id", "order", "pk"]
        default_permissions = ()  # the permissions of the pool apply to its members
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "name"],
                name="limits_app_pool_member_one_per_name",
                violation_error_message=_("The pool already has a member with this name."),
            ),
            models.CheckConstraint(
                name="limits_app_pool_member_fields", condition=~Q(name="") & Q(weight__gte=1, weight__lte=MAX_WEIGHT)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean_alone(self) -> None:
        """Normalize an empty config."""
        self.config = self.config or {}


class CoolDown(models.Model):
    """A member that is not used until a time, as an upstream asked for; state, and not configuration.

    `until` is in microseconds since 1970, by the clock of the store, and `length` is how long it is in total. It
    belongs to names, as usage does, so that it does not lock the rows of the pool.
    Without a member, it is about the resource with the name `pool`.
    """

    pool = ExactTextField(max_length=64)
    member = ExactTextField(max_length=100)
    until = models.BigIntegerField()
    length = models.BigIntegerField()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["pool", "member"], name="limits_app_cool_down_one_per_member")]

    def __str__(self) -> str:
        return f"{self.member} of {self.pool}"


def cool_downs(pool: str) -> dict[str, Cooling]:
    """Read the cool-downs of the members of a pool, by their names."""
    using = router.db_for_write(CoolDown)
    rows = CoolDown.objects.using(using).filter(pool=pool).values_list("member", "until", "length")
    return read(using, lambda: {member: Cooling(until, length) for member, until, length in rows}, {})


def keep_cool_down(pool: str, member: str, cooling: Cooling) -> bool:
    """Store a cool-down of a member; of several ends the latest counts, and a length of 0 ends the cool-down.

    Returns whether that has changed anything.
    """
    using = router.db_for_write(CoolDown)
    rows = CoolDown.objects.using(using)
    limits = rows.filter(pool=pool, member=member)
    with own_query(using):
        if not cooling.length:
            return limits.delete()[0] > 0
        rows.bulk_create([CoolDown(pool=pool, member=member, until=0, length=0)], ignore_conflicts=True)
        is_over = Q(until__gt=cooling.until - cooling.length + 2 * F("length"))  # as `Cooling.left_us` decides
        later = limits.filter(Q(until__lt=cooling.until) | is_over)
        return later.update(until=cooling.until, length=cooling.length) > 0


_MEMBER: Final = ("name", "weight", "config", "enabled")


@dataclass(frozen=True, slots=True)
class MemberDefinition:
    """A member: its limits ordered by key, and its config with references to secrets."""

    name: str
    weight: int = 1
    config: Mapping[str, object] = field(default_factory=dict, hash=False)
    enabled: bool = True
    limits: tuple[LimitDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolDefinition:
    """A pool and all its members in order, including disabled ones."""

    name: str
    load_balancing: str
    failover: bool
    members: tuple[MemberDefinition, ...]

    @property
    def enabled(self) -> tuple[MemberDefinition, ...]:
        """The enabled members."""
        return tuple(member for member in self.members if member.enabled)


def pool_definition(name: str, using: str) -> PoolDefinition | None:
    """Read the pool of this name; None if it does not exist."""
    columns = ["load_balancing", "failover", "members__pk", *[f"members__{column}" for column in _MEMBER]]
    columns += ["members__limits__key", "members__limits__text"]
    pools = Pool.objects.using(using).filter(name=name)
    selected = pools.order_by("members__order", "members__pk").values_list(*columns)
    rows: list[Any] = read(using, lambda: list(selected), [])
    if not rows:
        return None
    load_balancing, failover = rows[0][:2]
    members: dict[int, tuple[dict[str, Any], list[LimitDefinition]]] = {}
    with known_time_zones():
        for _balancing, _failover, pk, *values, key, text in rows:
            if pk is None:
                continue
            fields, limits = members.setdefault(pk, (dict(zip(_MEMBER, values, strict=True)), []))
            if key is None:
                continue
            try:
                limits.append(stored_definition(key, text)[0])
            except UnknownTimeZone:
                raise
            except InvalidLimit as error:  # written past the validation of the model
                logger.warning("member %s of pool %s is not used, because of a limit: %s", fields["name"], name, error)
                fields["enabled"] = False
    # A fixed order of limits, because every process must compile the same layout.
    definitions = [
        MemberDefinition(**fields, limits=tuple(sorted(limits, key=attrgetter("key"))))
        for fields, limits in members.values()
    ]
    return PoolDefinition(name, load_balancing, failover, tuple(definitions))
