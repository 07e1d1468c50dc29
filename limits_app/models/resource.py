"""Resources."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField
from limits_app.models.pool import Pool
from limits_app.models.validators import validate_resource_name, validate_store, validate_text


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
            "For several back ends that can serve it, such as regions: one with room is chosen for each request."
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

    made_for_rule = models.BooleanField(_("made for a URL rule"), default=False, db_default=False, editable=False)

    class Meta(Configuration.Meta):
        verbose_name = _("resource")
        verbose_name_plural = _("resources")
        ordering = ["name"]
        permissions = [
            ("reset_resource", "Can reset usage of resources"),
            ("top_up_resource", "Can top up limits of resources"),
        ]
        constraints = [models.CheckConstraint(name="limits_app_resource_has_name", condition=~models.Q(name=""))]

    def __str__(self) -> str:
        return self.name
