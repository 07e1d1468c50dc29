"""Resources that limits can be set for."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField
from limits_app.models.pool import Pool
from limits_app.models.validators import validate_resource_name, validate_store, validate_text

__all__ = ["Resource"]


class Resource(Configuration):
    """Something scarce that limits can be set for: an API, a model, a kind of job."""

    always_validated = ("name",)

    name = ExactTextField(
        _("name"),
        max_length=64,
        unique=True,
        validators=[validate_resource_name],
        help_text=_(
            "As the code calls it, such as “openai/gpt-4”: a letter, then letters, digits, “_”, “.”, “/” or “-”. "
            "Case counts."
        ),
    )
    description = models.TextField(
        _("description"), blank=True, validators=[validate_text], help_text=_("What it is, for other administrators.")
    )
    pool = models.ForeignKey(
        Pool,
        verbose_name=_("pool"),
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="resources",
        help_text=_("Whose members serve it: a request then needs room in one of them, and in its own limits."),
    )
    store = ExactTextField(
        _("store"),
        max_length=64,
        blank=True,
        default="",
        db_default="",  # processes of the version before go on making resources
        validators=[validate_store],
        help_text=_(
            "Where what is used of it is counted, as the settings call it; empty means in the default one. "
            "In another store everybody starts anew, and what counted in the one before is forgotten there in time."
        ),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("resource")
        verbose_name_plural = _("resources")
        ordering = ["name"]
        permissions = [
            ("reset_resource", "Can reset what was used of resources"),
            ("top_up_resource", "Can top up limits of resources"),
        ]
        constraints = [
            models.CheckConstraint(
                name="limits_app_resource_has_name",
                condition=~models.Q(name=""),
                violation_error_message=_("Give the resource a name."),
            )
        ]

    def __str__(self) -> str:
        return self.name
