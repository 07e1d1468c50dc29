"""Subcommands, exit codes, and audited changes with dry run."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import router, transaction

from limits_app.audit import Difference, Snapshot, acting, differences
from limits_app.management.limits.output import Format, Output, Table
from limits_app.models import AuditEvent, Verb
from limits_app.models.limit_rules import snapshot_text
from limits_app.models.namespaces import entered_by_name, run_in_all
from limits_app.models.patterns import is_pattern
from limits_app.services.safe_text import printable
from limits_app.usage.reading import never_used


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    """Success, or the answer is yes."""
    ERROR = 1
    """Failure: an object does not exist, a service is unavailable, or the confirmation was declined."""
    USAGE = 2
    """Usage error: an invalid option, name or limit, or a confirmation is needed and stdin is not a terminal."""
    NO = 3
    """The answer is no: rejected, different, broken."""
    INTERRUPTED = 130
    """Interrupted with Ctrl-C."""


Argument = Callable[[Any], object]
"""Adds an argument, or several, to a parser or to a group of its options."""
Run = Callable[[Namespace, Output], ExitCode | None]
"""Runs a subcommand; None is success."""


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand of `manage.py limits`, which either runs or has verbs that run.

    `examples` are command lines without `manage.py limits`; `--help` shows them.
    A subcommand that `writes` also has the options `--dry-run`, `--yes` and `--reason`, and one that is `periodic`
    the option `--all`.
    """

    help: str
    run: Run | None = None
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    writes: bool = False
    periodic: bool = False
    verbs: Mapping[str, Subcommand] = field(default_factory=dict)

    def add_to(self, parser: ArgumentParser) -> None:
        """Add its arguments and the common options."""
        for add in self.arguments:
            add(parser)
        parser.add_argument("--format", choices=[*map(str, Format)], default=str(Format.TABLE), help="output format")
        namespace = parser.add_mutually_exclusive_group()
        namespace.add_argument("--namespace", metavar="NAME", help="work on this tenant, as LIMITS names it")
        if self.periodic:
            namespace.add_argument("--all", action="store_true", help="work on each tenant in LIMITS['NAMESPACES']")
        if self.writes:
            parser.add_argument("--dry-run", action="store_true", help="show the changes without saving them")
            parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
            parser.add_argument("--reason", default="", help="the reason, for the audit log")


def subcommand(
    text: str, *arguments: Argument, examples: tuple[str, ...], writes: bool = False, periodic: bool = False
) -> Callable[[Run], Subcommand]:
    """Make a function a subcommand, with its help and its arguments."""
    return lambda run: Subcommand(text, run, arguments, examples, writes, periodic)


def run_in_namespaces(run: Run, options: Namespace, out: Output) -> int:
    """Run a subcommand in the namespaces that its options name, or in the present one; returns its exit code.

    Of several namespaces, the code is the worst; an error in one is shown, and the others are worked on.
    """
    if not (options.namespace or getattr(options, "all", False)):
        return run(options, out) or ExitCode.OK
    codes = [ExitCode.OK]

    def run_in(name: str) -> None:
        out.note(f"namespace {printable(name)}:")
        codes.append(ExitCode(run(options, out) or ExitCode.OK))

    try:
        if options.namespace:
            with entered_by_name(options.namespace):
                return run(options, out) or ExitCode.OK
        errors = run_in_all(run_in)
    except ImproperlyConfigured as error:
        fail(str(error), ExitCode.USAGE)
    for name, problem in errors.items():
        out.note(f"namespace {printable(name)}: {printable(str(problem), but=chr(10))}")
    if errors:
        fail(f"The command failed in {len(errors)} namespaces: {', '.join(map(printable, errors))}.")
    return max(codes)


def fail(message: str, code: ExitCode = ExitCode.ERROR) -> NoReturn:
    """End the command with a message on stderr."""
    raise CommandError(printable(message, but="\n"), returncode=code)


SOURCE: Final = "command"
_CHANGES: Final = ("verb", "object", "field", "before", "after")
_IN_THE_NAME: Final = ("scope", "resource", "entity")
"""Fields that the name of a policy contains; they are not repeated when one is created or deleted."""


def actor() -> str:
    """The operating system user; environment variables such as USER are not trusted."""
    try:
        import pwd
    except ImportError:  # Windows
        return os.getlogin()
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a number without a name, as in many containers
        return f"uid {number}"


def confirm(question: str, options: Namespace, out: Output) -> None:
    """Ask for confirmation, unless the options have --yes or --dry-run."""
    out.confirm(question, yes=options.yes or options.dry_run)


def note_unused(entity: str | None, out: Output) -> None:
    """Hint that an entity without recorded usage may be misspelled."""
    for name in never_used([entity] if entity and not is_pattern(entity) else []):
        out.note(f"note: no usage of the entity {name!r} before the last roll-up: check the spelling")


@contextmanager
def changing(options: Namespace, out: Output) -> Iterator[None]:
    """Run changes of configuration in a transaction and show them; a dry run rolls back."""
    using = router.db_for_write(AuditEvent)
    events = AuditEvent.objects.using(using)
    with transaction.atomic(using=using):
        with acting(actor=actor(), source=SOURCE, reason=options.reason, using=using):
            last = events.order_by("-number").values_list("number", flat=True).first() or 0
            yield
        rows = list(events.filter(number__gt=last).order_by("number"))
        if options.dry_run:
            transaction.set_rollback(True, using=using)
    out.show(change_table(rows))
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")


def change_table(events: Iterable[AuditEvent]) -> Table:
    """The changes in some events, one row for each field."""
    rows = [
        (event.verb, f"{event.object_type} {event.object_label}", difference.field, difference.before, difference.after)
        for event in events
        for difference in changes_of(event)
    ]
    return Table(_CHANGES, rows, "No changes.")


def changes_of(event: AuditEvent) -> list[Difference]:
    """The changes in an event, with limits in text notation."""
    changes = differences(_readable(event.before), _readable(event.after))
    if event.verb == Verb.UPDATE or event.object_type != "policy":
        return changes
    return [change for change in changes if change.field not in _IN_THE_NAME]


def _readable(told: Snapshot | None) -> Snapshot:
    """A snapshot with each limit, also of nested objects, in text notation."""
    readable: dict[str, Any] = {}
    for name, value in (told or {}).items():
        if name == "limits" and not isinstance(value, str):  # the limits of a rule for URLs are a text
            readable |= {f"limit {limit.get('key')}": snapshot_text(limit) for limit in value}
        elif isinstance(value, list):
            readable[name] = [_readable(element) if isinstance(element, dict) else element for element in value]
        else:
            readable[name] = value
    return readable
