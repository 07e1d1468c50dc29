"""The entries of the app in the menu of the admin, which has one for each model that is registered there.

The other models are registered too, for their pages, their permissions and autocompletion, and are not in the menu.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from limits_app.models.usage import UsageSnapshot


class _MenuEntry:
    """The options of a model that only stands for an entry."""

    proxy = True
    default_permissions = ()


class Overview(UsageSnapshot):
    """The state of the site at a glance."""

    class Meta(_MenuEntry):
        verbose_name = _("overview")
        verbose_name_plural = _("overview")


class LimitsEntry(UsageSnapshot):
    """What is limited, and for whom."""

    class Meta(_MenuEntry):
        verbose_name = _("limits")
        verbose_name_plural = _("limits")


class ClientsEntry(UsageSnapshot):
    """Who is limited."""

    class Meta(_MenuEntry):
        verbose_name = _("clients")
        verbose_name_plural = _("clients")


class ActivityEntry(UsageSnapshot):
    """What happened."""

    class Meta(_MenuEntry):
        verbose_name = _("activity")
        verbose_name_plural = _("activity")


class AlertsEntry(UsageSnapshot):
    """Alerts, and their recipients."""

    class Meta(_MenuEntry):
        verbose_name = _("alerts")
        verbose_name_plural = _("alerts")


class SettingsEntry(UsageSnapshot):
    """Pools, exemptions and the emergency switch."""

    class Meta(_MenuEntry):
        verbose_name = _("settings")
        verbose_name_plural = _("settings")
