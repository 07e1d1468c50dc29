"""Django's `flush`, which empties the audit log too, because it empties everything."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections
from django.db.models import BigIntegerField

from limits_app.models import AuditHead

__all__ = ["Command"]


class Command(flush.Command):
    """Empties all tables, as tests with real transactions do after each one."""

    def handle(self, **options: Any) -> None:
        """Let the database let go of all events while it works; of a head that is left, nothing has changed."""
        using = options["database"]
        if AuditHead._meta.db_table not in connections[using].introspection.table_names():
            super().handle(**options)
            return
        heads = AuditHead._default_manager.using(using)
        earlier = heads.values("pruned_number").first() or {"pruned_number": 0}
        heads.update(pruned_number=BigIntegerField.MAX_BIGINT)
        try:
            super().handle(**options)
        finally:
            heads.update(**earlier)
