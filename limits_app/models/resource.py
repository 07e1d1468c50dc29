"""Resources, and the limits that code sets on them, as with `default_limits`: noted, so that people can see them."""

from __future__ import annotations

import logging
from collections.abc import MutableSet
from typing import Final, cast

from django.db import connections, models, router, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from limits_app.conf import test_runner
from limits_app.engine import limit_text, parse_limit
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField
from limits_app.models.own_queries import DATABASE_ERRORS, known_time_zones, read
from limits_app.models.pool import Pool
from limits_app.models.priority_field import priority_field
from limits_app.models.validators import validate_resource_name, validate_store, validate_text

logger = logging.getLogger("limits_app")

_MOST_ROWS: Final = 1000
_LONGEST_TEXT: Final = 500


class Resource(Configuration):
    """Something that can be limited: an API, a language model, a kind of job."""

    always_validated = ("name",)

    name = ExactTextField(
        _("name"),
        max_length=64,
        unique=True,
        validators=[validate_resource_name],
        help_text=_(
            "The name in code, such as “openai/gpt-4”: a letter, then letters, digits, “_”, “.”, “/” or “-”. "
            "Case-sensitive."
        ),
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("A description for other administrators.")
    )
    pool = models.ForeignKey(
        Pool,
        verbose_name=_("pool"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="resources",
        help_text=_(
            "For several back ends that can serve it, such as regions: one with free capacity is chosen for each "
            "request."
        ),
    )
    store = ExactTextField(
        _("store"),
        max_length=64,
        blank=True,
        default="",
        db_default="",  # processes of the version before go on making resources
        validators=[validate_store],
        help_text=_(
            "The store that counts its usage, a key of LIMITS['STORES']; leave empty for the default store. "
            "Changing the store resets all counters of this resource."
        ),
    )

    request_priority = priority_field(
        _(
            "One of LIMITS['PRIORITIES']; “normal” when empty. The priority of a plan, of a URL rule or in code "
            "precedes it."
        )
    )
    made_for_rule = models.BooleanField(_("made for a URL rule"), default=False, db_default=False, editable=False)

    class Meta(Configuration.Meta):
        verbose_name = _("resource")
        verbose_name_plural = _("resources")
        ordering = ["name"]
        permissions = [
            ("reset_resource", "Can reset usage of resources"),
            ("top_up_resource", "Can top up limits of resources"),
            ("use_limits", "Can acquire limits for other programs"),
        ]
        constraints = [models.CheckConstraint(name="limits_app_resource_has_name", condition=~models.Q(name=""))]

    def __str__(self) -> str:
        return self.shown_as or self.name


class CodeLimits(models.Model):
    """Limits that code passed for a resource, as text; a process writes them when it first uses them."""

    resource = ExactTextField(max_length=64)
    limits = models.CharField(max_length=_LONGEST_TEXT)
    used_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["resource", "limits"], name="limits_app_code_limits_once")]

    def __str__(self) -> str:
        return f"{self.resource}: {self.limits}"

    @property
    def definitions(self) -> tuple[LimitDefinition, ...]:
        """The limits."""
        words = self.limits.split()
        with known_time_zones():
            return tuple(
                cast("LimitDefinition", Blocked()) if word == Blocked.key else parse_limit(word).limit for word in words
            )


def note_code_limits(
    resource: str, limits: tuple[LimitDefinition, ...], noted: MutableSet[tuple[str, tuple[LimitDefinition, ...]]]
) -> None:
    """Write the limits that code passed for a resource, after the transaction of the caller, and add them to `noted`.

    The rows used last are kept, at most 1,000. A failure is logged, since no request depends on the rows.
    While a test runner runs nothing is written: it would count as queries of the tests.
    """
    if test_runner.current_test() is not None:
        return
    text = " ".join(Blocked.key if isinstance(limit, Blocked) else limit_text(limit) for limit in limits)
    using = router.db_for_write(CodeLimits)
    if len(text) > _LONGEST_TEXT or not (connections[using].in_atomic_block or connections[using].get_autocommit()):
        return

    def write() -> None:
        noted.add((resource, limits))
        rows = CodeLimits.objects.using(using)
        try:
            if not rows.filter(resource=resource, limits=text).update(used_at=timezone.now()):
                rows.bulk_create([CodeLimits(resource=resource, limits=text)], ignore_conflicts=True)
                oldest = list(rows.order_by("-used_at", "-pk").values_list("pk", flat=True)[_MOST_ROWS:])
                rows.filter(pk__in=oldest).delete()
        except DATABASE_ERRORS as error:
            logger.warning("the limits that code sets on %s are not shown to administrators: %s", resource, error)

    transaction.on_commit(write, using=using)


def code_limits(*resources: str) -> list[CodeLimits]:
    """Return the limits that code has passed for some resources, those used last first."""
    rows = CodeLimits.objects.filter(resource__in=resources).order_by("-used_at", "-pk")
    return read(rows.db, lambda: list(rows), [])
