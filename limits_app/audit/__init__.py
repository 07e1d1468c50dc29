"""The audit log: one event for each changed object, written in the transaction of the change."""

from __future__ import annotations

from limits_app.audit.protection import is_protected, protect, unprotect
from limits_app.audit.redacting import Identifier, redact
from limits_app.audit.reverting import (
    MODELS,
    Difference,
    FieldChange,
    changed_by_revert,
    changed_since,
    differences,
    revert,
    state_now,
    undone,
)
from limits_app.audit.units import is_made, made_for_rules, main_events, unit_of, units
from limits_app.audit.verifying import AuditReport, BrokenLink, Fault, Unrecorded, prune, sign, unrecorded, verify
from limits_app.engine.errors import CannotProtect, CannotRevert
from limits_app.models.recording import Unit, acting
from limits_app.models.snapshots import Snapshot, snapshot
