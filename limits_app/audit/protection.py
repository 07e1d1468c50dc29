"""Database triggers that make the audit log append-only.

They are optional and created by `manage.py limits audit protect`, because the database user may lack the privilege.
Events that the head records as pruned can still be deleted, and so can the head of a log without other events.
Events can be redacted if the last event is that of an erasure and names them; their places in the chain stay.
The head never moves backwards, and events are marked as pruned only if the last event records the pruning.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

from django.db import DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app.engine.errors import CannotProtect
from limits_app.models import AuditEvent, AuditHead

_REFUSAL: Final = "the audit log is append-only: write another event instead of changing or deleting one"
_UPDATE: Final = "limits_app_audit_no_update"
_DELETE: Final = "limits_app_audit_no_delete"
_REPLACE: Final = "limits_app_audit_no_replace"
_TRUNCATE: Final = "limits_app_audit_no_truncate"
_HEAD: Final = "limits_app_audit_keep_head"
_HEAD_UPDATE: Final = "limits_app_audit_head_forward"
_HEAD_TRUNCATE: Final = "limits_app_audit_keep_head_truncate"
_ON_EVENTS: Final = "ON limits_app_auditevent"
_ON_HEAD: Final = "ON limits_app_audithead"

_KEPT: Final = "EXISTS (SELECT 1 FROM limits_app_audithead WHERE pruned_number < OLD.number)"
_KEEPS: Final = "EXISTS (SELECT 1 FROM limits_app_auditevent WHERE number > OLD.pruned_number)"
_SHORTENS: Final = (
    "(NEW.number < OLD.number OR NEW.pruned_number < OLD.pruned_number OR (NEW.pruned_number > OLD.pruned_number"
    " AND NOT EXISTS (SELECT 1 FROM limits_app_auditevent WHERE number = NEW.number AND verb = 'prune')))"
)
"""The head moves backwards, or marks events as pruned although the last event does not record a pruning."""
_ANY_KEPT: Final = (
    "EXISTS (SELECT 1 FROM limits_app_auditevent, limits_app_audithead"
    " WHERE limits_app_auditevent.number > limits_app_audithead.pruned_number)"
)
# `INSERT OR REPLACE` deletes without the trigger of deletions.
_TAKEN: Final = (
    "EXISTS (SELECT 1 FROM limits_app_auditevent WHERE id = NEW.id OR number = NEW.number"
    " OR idempotency_key = NEW.idempotency_key)"
)

_CHAINED: Final = ("id", "number", "previous", "digest", "when", "source", "verb", "object_type", "object_id")
"""Columns that a redaction does not change."""


def _redacts(quote: str, named: str) -> str:
    """The condition under which an event may be changed; `named` says whether the last event, `e`, names it."""
    columns = (f"{quote}{name}{quote}" for name in _CHAINED)
    same = " AND ".join(f"NEW.{name} = OLD.{name}" for name in columns)
    last = "SELECT 1 FROM limits_app_audithead h JOIN limits_app_auditevent e ON e.number = h.number"
    return f"({same} AND EXISTS ({last} WHERE e.verb = 'erase' AND {named}))"


_SQLITE_REFUSE: Final = f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
_SQLITE_REDACTS: Final = _redacts('"', "json_extract(e.after, '$.redacted.\"' || OLD.number || '\"') IS NOT NULL")
_SQLITE: Final = {
    _UPDATE: f"BEFORE UPDATE {_ON_EVENTS} WHEN NOT {_SQLITE_REDACTS} {_SQLITE_REFUSE}",
    _DELETE: f"BEFORE DELETE {_ON_EVENTS} WHEN {_KEPT} {_SQLITE_REFUSE}",
    _REPLACE: f"BEFORE INSERT {_ON_EVENTS} WHEN {_TAKEN} {_SQLITE_REFUSE}",
    _HEAD: f"BEFORE DELETE {_ON_HEAD} WHEN {_KEEPS} {_SQLITE_REFUSE}",
    _HEAD_UPDATE: f"BEFORE UPDATE {_ON_HEAD} WHEN {_SHORTENS} {_SQLITE_REFUSE}",
}

_POSTGRESQL_REDACTS: Final = _redacts('"', "jsonb_exists(e.after -> 'redacted', OLD.number::text)")
_FUNCTION: Final = "limits_app_audit_append_only"
_CREATE_FUNCTION: Final = f"""CREATE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'TRUNCATE' THEN
            IF NOT {_ANY_KEPT} THEN RETURN NULL; END IF;
        ELSIF TG_OP = 'DELETE' AND TG_NAME = '{_HEAD}' THEN
            IF NOT {_KEEPS} THEN RETURN OLD; END IF;
        ELSIF TG_NAME = '{_HEAD_UPDATE}' THEN
            IF NOT {_SHORTENS} THEN RETURN NEW; END IF;
        ELSIF TG_NAME = '{_UPDATE}' THEN
            IF {_POSTGRESQL_REDACTS} THEN RETURN NEW; END IF;
        ELSIF TG_OP = 'DELETE' THEN
            IF NOT {_KEPT} THEN RETURN OLD; END IF;
        END IF;
        RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'restrict_violation';
    END $$"""
_DROP_FUNCTION: Final = f"DROP FUNCTION IF EXISTS {_FUNCTION}() CASCADE"  # with the triggers that call it
_POSTGRESQL: Final = {
    _UPDATE: f"BEFORE UPDATE {_ON_EVENTS} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    _DELETE: f"BEFORE DELETE {_ON_EVENTS} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    _TRUNCATE: f"BEFORE TRUNCATE {_ON_EVENTS} FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()",
    _HEAD: f"BEFORE DELETE {_ON_HEAD} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    _HEAD_UPDATE: f"BEFORE UPDATE {_ON_HEAD} FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()",
    _HEAD_TRUNCATE: f"BEFORE TRUNCATE {_ON_HEAD} FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()",
}

_MYSQL_REFUSE: Final = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{_REFUSAL}'"
_MYSQL_REDACTS: Final = _redacts("`", "JSON_EXTRACT(e.after, CONCAT('$.redacted.\"', OLD.number, '\"')) IS NOT NULL")
_MYSQL: Final = {
    _UPDATE: f"BEFORE UPDATE {_ON_EVENTS} FOR EACH ROW IF NOT {_MYSQL_REDACTS} THEN {_MYSQL_REFUSE}; END IF",
    _DELETE: f"BEFORE DELETE {_ON_EVENTS} FOR EACH ROW IF {_KEPT} THEN {_MYSQL_REFUSE}; END IF",
    _HEAD: f"BEFORE DELETE {_ON_HEAD} FOR EACH ROW IF {_KEEPS} THEN {_MYSQL_REFUSE}; END IF",
    _HEAD_UPDATE: f"BEFORE UPDATE {_ON_HEAD} FOR EACH ROW IF {_SHORTENS} THEN {_MYSQL_REFUSE}; END IF",
}

_TRIGGERS: Final[Mapping[str, Mapping[str, str]]] = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL}
"""By database: what follows `CREATE TRIGGER` and the name of each trigger."""
_EXISTING: Final[Mapping[str, str]] = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger"
    " WHERE tgenabled <> 'D' AND tgrelid IN ('limits_app_auditevent'::regclass, 'limits_app_audithead'::regclass)",
    "mysql": "SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
}
_BINARY_LOG: Final = 1419
"""The error of MySQL and MariaDB for triggers of users without SUPER while binary logging is on."""


def protect(*, using: str | None = None) -> None:
    """Create the triggers in the database `using`, by default the one of the audit log, and replace those that exist.

    Raises CannotProtect if the database is not supported or does not permit triggers.
    """
    connection = _connection(using)
    create = [f"CREATE TRIGGER {name} {rest}" for name, rest in _TRIGGERS[connection.vendor].items()]
    if connection.vendor == "postgresql":
        create.insert(0, _CREATE_FUNCTION)
    with transaction.atomic(using=connection.alias):
        AuditHead.locked(connection.alias)  # the triggers read it, so it has to exist
    _execute(connection, [*_drop(connection), *create])


def unprotect(*, using: str | None = None) -> None:
    """Drop the triggers, if they exist. Raises CannotProtect if the database does not permit it."""
    connection = _connection(using)
    _execute(connection, _drop(connection))


def is_protected(*, using: str | None = None) -> bool:
    """Return whether all triggers exist and are enabled.

    Raises CannotProtect if the database is not supported.
    """
    connection = _connection(using)
    return _existing(connection) == {*_TRIGGERS[connection.vendor]}


def _connection(using: str | None) -> BaseDatabaseWrapper:
    connection = connections[using or router.db_for_write(AuditEvent)]
    if connection.vendor not in _TRIGGERS:
        raise CannotProtect(
            "the audit log can be protected on PostgreSQL, SQLite, MySQL and MariaDB; "
            f"the database {connection.alias!r} is {connection.display_name}"
        )
    return connection


def _existing(connection: BaseDatabaseWrapper) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(_EXISTING[connection.vendor])
        return {name for (name,) in cursor.fetchall()} & {*_TRIGGERS[connection.vendor]}


def _drop(connection: BaseDatabaseWrapper) -> list[str]:
    if connection.vendor == "postgresql":
        return [_DROP_FUNCTION]
    # MariaDB with binary logging rejects `DROP TRIGGER IF EXISTS` even if the trigger does not exist.
    return [f"DROP TRIGGER {name}" for name in _existing(connection)]


def _execute(connection: BaseDatabaseWrapper, statements: list[str]) -> None:
    # On MySQL and MariaDB each of these statements commits by itself.
    rolls_back = connection.features.can_rollback_ddl
    try:
        with transaction.atomic(connection.alias) if rolls_back else nullcontext(), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    except DatabaseError as error:
        raise CannotProtect(_explanation(error, connection)) from error


def _explanation(error: DatabaseError, connection: BaseDatabaseWrapper) -> str:
    what = f"the database {connection.alias!r} does not permit triggers for the audit log: {error}"
    if error.args and error.args[0] == _BINARY_LOG:
        return (
            f"{what}. With binary logging, either set log_bin_trust_function_creators = 1 on the server, "
            "or run this command once as a database user with the privilege SUPER."
        )
    return f"{what}. Grant the database user the privilege TRIGGER on its tables, or make it their owner."
