"""`erase`: replaces the identifier of an entity with a random pseudonym."""

from __future__ import annotations

from argparse import Namespace

from limits_app import services as limits
from limits_app.management.limits.arguments import ENTITY, argument
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import SOURCE, actor, confirm, subcommand

_ROW = ("usage", "rejections", "alerts", "admin_log", "events")


@subcommand(
    "replace the identifier of an entity with a random pseudonym, in usage, rejections, alerts, stores and audit log",
    ENTITY,
    argument("--with-policies", action="store_true", help="also remove its policies, its row and what else names it"),
    examples=("erase user:42 --dry-run", "erase user:42 --with-policies --yes --reason 'request 2026-17'"),
    writes=True,
)
def erase(options: Namespace, out: Output) -> None:
    """Erase the identifier, and name the configuration that has it."""
    confirm(f"Replace {options.entity} with a pseudonym? This cannot be reverted.", options, out)
    erased = limits.erase(
        options.entity,
        with_policies=options.with_policies,
        dry_run=options.dry_run,
        reason=options.reason,
        actor=actor(),
        source=SOURCE,
    )
    counts = tuple(getattr(erased, name) for name in _ROW)
    table = Table(("pseudonym", *_ROW), [(erased.pseudonym, *counts)] if erased.rows else [], "No row has it.")
    out.show(table, data=erased.as_dict())
    done = "Removed" if erased.removed else "Still configured; --with-policies removes it"
    for row in erased.configuration:
        out.note(f"{done}: {row}.")
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")
