"""What older versions have no columns for, and what has to go before a migration is reversed.

Kept, it would mean something else there: a quota would be a broken rate, and a policy that was only tried would refuse.
"""

from __future__ import annotations

from django.apps.registry import Apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Model, Q, QuerySet

__all__ = ["forget_hierarchy", "forget_members", "forget_quotas"]


def forget_quotas(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Remove quotas, and soft limits, which would refuse."""
    _rows(apps, editor, "Limit").filter(Q(kind="quota") | Q(soft=True)).delete()
    _settle(editor)


def forget_hierarchy(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Remove policies that do not hold always and for everybody, and events of what was not there."""
    sometimes = Q(valid_from__isnull=False) | Q(valid_until__isnull=False) | ~Q(weekly_hours="")
    partly = ~Q(enforcement="enforce") | Q(rollout_percent__lt=100)
    _rows(apps, editor, "Policy").filter(sometimes | partly).delete()
    _rows(apps, editor, "AuditEvent").filter(verb="top_up").delete()
    _settle(editor)


def forget_members(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Remove the limits of pool members."""
    _rows(apps, editor, "Limit").filter(member__isnull=False).delete()
    _settle(editor)


def _rows(apps: Apps, editor: BaseDatabaseSchemaEditor, name: str) -> QuerySet[Model]:
    rows: QuerySet[Model] = apps.get_model("limits_app", name)._base_manager.using(editor.connection.alias)
    return rows


def _settle(editor: BaseDatabaseSchemaEditor) -> None:
    """Have deferred constraints checked: PostgreSQL alters no table whose checks are still to come."""
    if editor.connection.vendor == "postgresql":
        editor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        editor.execute("SET CONSTRAINTS ALL DEFERRED")
