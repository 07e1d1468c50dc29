"""The emergency switch: all limits of the site are enforced, in shadow mode, or off."""

from __future__ import annotations

from datetime import UTC, datetime

from django.utils import timezone

from limits_app import audit
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Emergency, EmergencySwitch, Enforcement, write_alias
from limits_app.policies import switch_in_force
from limits_app.services import definitions
from limits_app.services.writing import checked_datetime


def emergency() -> Emergency:
    """The emergency switch as it is in force now; off where `LIMITS["ENABLED"]` is False."""
    return switch_in_force(datetime.now(UTC))


def set_emergency(mode: str, *, reason: str = "", until: datetime | None = None, actor: str = "") -> Emergency:
    """Set the emergency switch of the site, which counts from the next acquire on, in every process.

    `mode` is `enforce`, `shadow` (all limits are evaluated and reported, but never reject) or `off` (nothing is
    limited). `shadow` and `off` require a `reason`, and end at `until` (None: when the switch is set again).
    `actor` is the name of the user for the audit log. Returns the switch; raises InvalidLimit (a ValueError).
    """
    using = write_alias()
    if until is not None:
        until = checked_datetime("until", until)
        if mode == Enforcement.ENFORCE:
            raise InvalidLimit("an end is only possible for shadow and off: leave until out")
        if until <= timezone.now():
            raise InvalidLimit(f"until must be in the future; got {until}")
    with audit.acting(actor=actor, source="service", reason=reason, using=using):
        switch = EmergencySwitch.objects.using(using).first() or EmergencySwitch()
        switch.mode, switch.reason, switch.until = mode, reason, until
        definitions.check(switch, validate_unique=False)
        switch.save(using=using)
    return emergency()
