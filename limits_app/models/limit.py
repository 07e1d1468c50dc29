"""Limits of policies and pool members."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Self

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from limits_app.engine import Noted, check_keep, check_shared, checked_limits, limit_body, parse_limits
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models.base import Configuration
from limits_app.models.fields import ExactTextField, cascade
from limits_app.models.limit_rules import CONSTRAINTS, definition_of, row_text
from limits_app.models.policy import Policy
from limits_app.models.policy_rules import PolicyEffect
from limits_app.models.pool import PoolMember


class Limit(Configuration):
    """A limit of a policy or a pool member, as its key and its text in the notation without key and `shared`."""

    part_of = ("policy", "member")

    policy = models.ForeignKey(
        Policy, verbose_name=_("policy"), on_delete=cascade, null=True, blank=True, related_name="limits"
    )
    member = models.ForeignKey(
        PoolMember, verbose_name=_("pool member"), on_delete=cascade, null=True, blank=True, related_name="limits"
    )
    key = ExactTextField(
        _("unit"),
        max_length=64,
        blank=True,
        help_text=_("What is counted: the key in code, such as “tokens”. Leave empty for requests (“call_count”)."),
    )
    text = ExactTextField(_("limit"), max_length=160)
    shared = models.BooleanField(
        _("shared by all clients"),
        default=False,
        help_text=_(
            "One counter for all entities instead of one for each entity; each resource is counted separately."
        ),
    )

    class Meta(Configuration.Meta):
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering = ["policy_id", "member_id", "key"]
        default_permissions = ()  # the permissions of the policy or pool apply to its limits
        constraints = CONSTRAINTS

    def __str__(self) -> str:
        return self.notation() if self.text else self.key

    @classmethod
    def from_definition(cls, owner: Policy | PoolMember, definition: LimitDefinition, *, shared: bool = False) -> Self:
        """Return an unsaved row of a definition, for a policy or a pool member; raises InvalidLimit."""
        if isinstance(definition, Blocked):
            raise InvalidLimit("a limit of 0 is not possible: use the effect “blocked” instead")
        row = cls(key=definition.key, text=limit_body(definition), shared=shared)
        row.definition()  # rejects what a row cannot have
        row.policy, row.member = (owner, None) if isinstance(owner, Policy) else (None, owner)
        return row

    def definition(self) -> LimitDefinition:
        """Return the row as an immutable value; raises InvalidLimit for a row that was written past validation."""
        return definition_of(self.key, self.text)

    def noted(self) -> Noted:
        """Return its definition, and whether all entities share it."""
        return Noted(self.definition(), self.shared)

    def notation(self) -> str:
        """Return it in text notation, such as `tpm=400k/min`; an invalid one as it is stored, in quotes."""
        return row_text(self.key, self.text, shared=self.shared)

    def clean_alone(self) -> None:
        """Write the text in its canonical form, and reject invalid limits and those that do not fit the policy."""
        if not self.text:
            return  # reported by the field
        try:
            definition = self.definition()
            check_keep(definition)
            self.text = limit_body(definition)
        except InvalidLimit as error:
            raise ValidationError({"text": str(error)}) from error
        self._check_owner()

    def _check_owner(self) -> None:
        try:
            policy, member = self.policy, self.member
        except ObjectDoesNotExist:
            return  # reported by the field
        if (policy is None) == (member is None):
            raise ValidationError({"policy": gettext("A limit must belong to either a policy or a pool member.")})
        self._check_start(is_shared=self.shared or policy is None)
        if policy is None:
            if self.shared:
                raise ValidationError({"shared": gettext("Limits of pool members are always shared.")})
            return
        effect = policy.effect
        if self.shared and not policy.is_for_all_entities:
            raise ValidationError(
                {
                    "shared": gettext(
                        "Only limits of a resource or of the system can be shared, not those of an entity or of a plan."
                    )
                }
            )
        if effect in (PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED):
            raise ValidationError(
                gettext("A policy with the effect “%(effect)s” cannot have limits: remove this one, or use “limits”.")
                % {"effect": PolicyEffect(effect).label}
            )

    def _check_start(self, *, is_shared: bool) -> None:
        try:
            check_shared(self.definition(), shared=is_shared)
        except InvalidLimit as error:
            raise ValidationError({"text": str(error)}) from error


@lru_cache(maxsize=1024)
def noted_limits(text: str) -> tuple[Noted, ...]:
    """Read limits in the order of their keys; raises InvalidLimit for an invalid one, and for none."""
    limits = tuple(sorted(parse_limits(text), key=lambda noted: noted.limit.key))
    checked_limits([noted.limit for noted in limits])
    return limits


def validate_limits(text: str) -> None:
    """Reject text that is not limits such as `60/min tokens=1M/day`."""
    try:
        for noted in noted_limits(text):
            check_keep(noted.limit)
            Limit.from_definition(Policy(), noted.limit, shared=noted.shared)
    except InvalidLimit as error:
        raise ValidationError(str(error)) from error


def limit_texts(rows: Iterable[Limit]) -> list[str]:
    """Return limits in text notation, in the order of their keys."""
    return [row.notation() for row in sorted(rows, key=lambda row: str(row.key))]
