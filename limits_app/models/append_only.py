"""Triggers by which the database itself keeps the audit log: events are not changed, and only pruned ones deleted.

The head of the log says up to which number events were pruned, and is not deleted before they all are.
A later migration that makes SQLite build one of the two tables anew has to guard them anew, for the triggers are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django.apps.registry import Apps
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

__all__ = ["guard", "unguard"]

_REFUSAL: Final = "the audit log is append-only: write another event instead of changing or deleting one"
_UPDATE: Final = "limits_app_audit_no_update"
_DELETE: Final = "limits_app_audit_no_delete"
_REPLACE: Final = "limits_app_audit_no_replace"
_TRUNCATE: Final = "limits_app_audit_no_truncate"
_HEAD: Final = "limits_app_audit_keep_head"
_HEAD_TRUNCATE: Final = "limits_app_audit_keep_head_truncate"
_ON_EVENTS: Final = "ON limits_app_auditevent"
_ON_HEAD: Final = "ON limits_app_audithead"

_KEPT: Final = "EXISTS (SELECT 1 FROM limits_app_audithead WHERE pruned_number < OLD.number)"
_KEEPS: Final = "EXISTS (SELECT 1 FROM limits_app_auditevent WHERE number > OLD.pruned_number)"
_ANY_KEPT: Final = (
    "EXISTS (SELECT 1 FROM limits_app_auditevent, limits_app_audithead"
    " WHERE limits_app_auditevent.number > limits_app_audithead.pruned_number)"
)
# `INSERT OR REPLACE` deletes without the trigger of deletions.
_TAKEN: Final = (
    "EXISTS (SELECT 1 FROM limits_app_auditevent WHERE id = NEW.id OR number = NEW.number"
    " OR idempotency_key = NEW.idempotency_key)"
)

_SQLITE_REFUSE: Final = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
_SQLITE: Final = (
    f"CREATE TRIGGER {_UPDATE} BEFORE UPDATE {_ON_EVENTS} {_SQLITE_REFUSE}",
    f"CREATE TRIGGER {_DELETE} BEFORE DELETE {_ON_EVENTS} WHEN {_KEPT} {_SQLITE_REFUSE}",
    f"CREATE TRIGGER {_REPLACE} BEFORE INSERT {_ON_EVENTS} WHEN {_TAKEN} {_SQLITE_REFUSE}",
    f"CREATE TRIGGER {_HEAD} BEFORE DELETE {_ON_HEAD} WHEN {_KEEPS} {_SQLITE_REFUSE}",
)

_FUNCTION: Final = "limits_app_audit_append_only"
_POSTGRESQL: Final = (
    f"""CREATE OR REPLACE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'TRUNCATE' THEN
            IF NOT {_ANY_KEPT} THEN RETURN NULL; END IF;
        ELSIF TG_OP = 'DELETE' AND TG_NAME = '{_HEAD}' THEN
            IF NOT {_KEEPS} THEN RETURN OLD; END IF;
        ELSIF TG_OP = 'DELETE' THEN
            IF NOT {_KEPT} THEN RETURN OLD; END IF;
        END IF;
        RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'restrict_violation';
    END $$""",
    f"CREATE TRIGGER {_UPDATE} BEFORE UPDATE {_ON_EVENTS} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    f"CREATE TRIGGER {_DELETE} BEFORE DELETE {_ON_EVENTS} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    f"CREATE TRIGGER {_TRUNCATE} BEFORE TRUNCATE {_ON_EVENTS} FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()",
    f"CREATE TRIGGER {_HEAD} BEFORE DELETE {_ON_HEAD} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    f"CREATE TRIGGER {_HEAD_TRUNCATE} BEFORE TRUNCATE {_ON_HEAD} FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()",
)

_MYSQL_REFUSE: Final = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{_REFUSAL}'"
_MYSQL: Final = (
    f"CREATE TRIGGER {_UPDATE} BEFORE UPDATE {_ON_EVENTS} FOR EACH ROW {_MYSQL_REFUSE}",
    f"CREATE TRIGGER {_DELETE} BEFORE DELETE {_ON_EVENTS} FOR EACH ROW IF {_KEPT} THEN {_MYSQL_REFUSE}; END IF",
    f"CREATE TRIGGER {_HEAD} BEFORE DELETE {_ON_HEAD} FOR EACH ROW IF {_KEEPS} THEN {_MYSQL_REFUSE}; END IF",
)

_GUARDS: Final[Mapping[str, tuple[str, ...]]] = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL}
_UNGUARDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sqlite": tuple(f"DROP TRIGGER IF EXISTS {name}" for name in (_UPDATE, _DELETE, _REPLACE, _HEAD)),
    "mysql": tuple(f"DROP TRIGGER IF EXISTS {name}" for name in (_UPDATE, _DELETE, _HEAD)),
    "postgresql": (f"DROP FUNCTION IF EXISTS {_FUNCTION}() CASCADE",),
}


def guard(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the triggers, new ones where they are there; for a migration's RunPython."""
    unguard(apps, schema_editor)
    for statement in _GUARDS.get(schema_editor.connection.vendor, ()):
        schema_editor.execute(statement)


def unguard(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Take the triggers away."""
    for statement in _UNGUARDS.get(schema_editor.connection.vendor, ()):
        schema_editor.execute(statement)
