"""`roles`: groups with the permissions for typical work on limits."""

from __future__ import annotations

from argparse import Namespace

from limits_app.management.limits.arguments import argument
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import subcommand
from limits_app.services.roles import make_roles

_COLUMNS = ("group", "permissions", "added")


@subcommand(
    "make the groups limits viewer, limits support and limits administrator, or add the permissions that they lack",
    argument("--dry-run", action="store_true", help="show the changes without saving them"),
    examples=("roles", "roles --dry-run"),
)
def roles(options: Namespace, out: Output) -> None:
    """Make the groups, and list what each was given."""
    rows = [(change.role.value, change.permissions, change.added) for change in make_roles(dry_run=options.dry_run)]
    out.show(Table(_COLUMNS, rows, ""))
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")
