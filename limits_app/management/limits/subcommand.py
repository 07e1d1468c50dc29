"""A subcommand, how it ends, and changes that are audited, shown, and undone in a dry run."""

from __future__ import annotations

import os
import pwd
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NoReturn

from django.core.management.base import CommandError
from django.db import router, transaction

from limits_app.audit import Difference, Snapshot, acting, differences
from limits_app.core.notation import limit_text
from limits_app.management.limits.output import Format, Output
from limits_app.management.limits.tables import Table
from limits_app.models import AuditEvent, Verb
from limits_app.models.limit_rules import COLUMNS, definition_of

__all__ = [
    "SOURCE",
    "ExitCode",
    "Subcommand",
    "actor",
    "change_table",
    "changes_of",
    "changing",
    "fail",
    "no_arguments",
]


class ExitCode(IntEnum):
    """What a command says to the program that called it."""

    OK = 0
    """It is done, or the answer is yes."""
    ERROR = 1
    """It could not be done: something is not there, or cannot be reached, or the answer to a question was not yes."""
    USAGE = 2
    """The command line cannot be understood: an option, a name or a limit that cannot be, or nobody is there to ask."""
    NO = 3
    """The answer is no: refused, different, broken."""
    INTERRUPTED = 130
    """Somebody pressed Ctrl-C."""


def no_arguments(parser: ArgumentParser) -> None:
    """Take nothing but the options that all have."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One word after `manage.py limits`: it either runs, or has verbs, each of which runs.

    `examples` are what stands after `manage.py limits`, and are shown by `--help`.
    One that `writes` also takes `--dry-run`, `--yes` and `--reason`.
    """

    help: str
    run: Callable[[Namespace, Output], ExitCode] | None = None
    arguments: Callable[[ArgumentParser], None] = no_arguments
    examples: tuple[str, ...] = ()
    writes: bool = False
    verbs: Mapping[str, Subcommand] = field(default_factory=dict)

    def add_to(self, parser: ArgumentParser) -> None:
        """Take its own arguments, and those that all have."""
        self.arguments(parser)
        parser.add_argument(
            "--format", choices=[*map(str, Format)], default=str(Format.TABLE), help="how to write what was asked for"
        )
        if self.writes:
            parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
            parser.add_argument("--yes", action="store_true", help="do not ask")
            parser.add_argument("--reason", default="", help="why, for the audit log")


def fail(message: str, code: ExitCode = ExitCode.ERROR) -> NoReturn:
    """End the command with a message on stderr."""
    raise CommandError(message, returncode=code)


SOURCE: Final = "command"
_CHANGES: Final = ("verb", "object", "field", "before", "after")
_IN_THE_NAME: Final = ("scope", "resource", "entity")
"""What a policy is called by, so that it need not be told again when one is made or deleted."""


def actor() -> str:
    """Who gives the command, as the operating system knows them; what the environment says, anybody can set."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a number without a name, as in many containers
        return f"uid {number}"


@contextmanager
def changing(options: Namespace, out: Output) -> Iterator[None]:
    """Change configuration in this block, all of it or nothing, and show what changed; in a dry run, undo it."""
    using = router.db_for_write(AuditEvent)
    events = AuditEvent.objects.using(using)
    with transaction.atomic(using=using):
        with acting(actor=actor(), source=SOURCE, reason=options.reason, using=using):
            last = events.order_by("-number").values_list("number", flat=True).first() or 0
            yield
        found = list(events.filter(number__gt=last).order_by("number"))
        if options.dry_run:
            transaction.set_rollback(True, using=using)
    out.show(change_table(found))
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")


def change_table(events: Iterable[AuditEvent]) -> Table:
    """What events say changed, one row for each field."""
    rows = [
        (event.verb, f"{event.object_type} {event.object_label}", one.field, one.before, one.after)
        for event in events
        for one in changes_of(event)
    ]
    return Table(_CHANGES, rows, "Nothing changes: it is so already.")


def changes_of(event: AuditEvent) -> list[Difference]:
    """What an event says changed, with limits as people write them."""
    found = differences(_readable(event.before), _readable(event.after))
    if event.verb == Verb.UPDATE or event.object_type != "policy":
        return found
    return [one for one in found if one.field not in _IN_THE_NAME]


def _readable(told: Snapshot | None) -> Snapshot:
    """An object as it was told, with each of its limits, and of those of its parts, in one line."""
    readable: dict[str, Any] = {}
    for name, value in (told or {}).items():
        if name == "limits":
            readable |= {f"limit {limit['key']}": _limit_text(limit) for limit in value}
        elif isinstance(value, list):
            readable[name] = [_readable(one) if isinstance(one, dict) else one for one in value]
        else:
            readable[name] = value
    return readable


def _limit_text(told: Snapshot) -> str:
    columns: list[Any] = [told.get(column) for column in COLUMNS]
    definition = definition_of(*columns)
    return limit_text(definition, shared=bool(told.get("shared")))
