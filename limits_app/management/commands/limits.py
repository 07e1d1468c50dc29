"""`manage.py limits`: manage and inspect limits on the command line."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitsError
from limits_app.management.limits import (
    alerts,
    audit_log,
    boosts,
    erasing,
    files,
    policies,
    pools,
    prices,
    roles,
    state,
    unblocking,
    uninstalling,
    usage,
)
from limits_app.management.limits.output import Format, Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail, run_in_namespaces
from limits_app.models.own_queries import DATABASE_ERRORS

SUBCOMMANDS: Final[Mapping[str, Subcommand]] = {
    "system": policies.SYSTEM,
    "resource": policies.RESOURCE_POLICIES,
    "plan": policies.PLAN_POLICIES,
    "entity": policies.ENTITY_POLICIES,
    "pool": pools.POOL,
    "prices": prices.PRICES,
    "check": state.check,
    "explain": state.explain,
    "rules": state.rules,
    "status": state.status,
    "top": state.top,
    "unblock": unblocking.unblock,
    "boost": boosts.boost,
    "reset": boosts.reset,
    "top-up": boosts.top_up,
    "candidates": boosts.CANDIDATES,
    "emergency": boosts.emergency,
    "denials": usage.denials,
    "why": usage.why,
    "usage": usage.usage,
    "snapshot": usage.snapshot,
    "prune": usage.prune,
    "audit": audit_log.AUDIT,
    "erase": erasing.erase,
    "roles": roles.roles,
    "alerts": alerts.ALERTS,
    "apply": files.apply,
    "export": files.export,
    "simulate": files.simulate,
    "doctor": state.doctor,
    "uninstall": uninstalling.uninstall,
}
"""In the order of `--help`."""

_CODES: Final = "exit codes: 0 success, 1 failure, 2 usage error, 3 a check failed, 130 interrupted"


class _Parser(CommandParser):
    """Accepts options before, between and after positional arguments."""

    has_verbs = False
    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse intermixed arguments; a parser with verbs passes them all on."""
        if self._is_mixing or self.has_verbs:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


class Command(BaseCommand):
    """Runs the subcommands and translates their errors."""

    help = "Manage and inspect limits."
    requires_system_checks: tuple[str, ...] = ()  # `limits doctor` must run on a broken site

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the subcommands with their arguments."""
        parser.epilog = _CODES
        _add(parser, SUBCOMMANDS, "subcommand")

    def handle(self, *args: object, **options: Any) -> None:
        """Run the chosen subcommand."""
        chosen: Subcommand = options["chosen"]
        out = Output(self.stdout, self.stderr, Format(options["format"]), color=not options["no_color"])
        assert chosen.run is not None  # noqa: S101 - a subcommand with verbs cannot be chosen
        with _errors_as_messages():
            code = run_in_namespaces(chosen.run, Namespace(**options), out)
            self.stdout.flush()  # inside the block, so that write errors become messages
        if code:
            sys.exit(code)


def _add(parser: ArgumentParser, subcommands: Mapping[str, Subcommand], what: str) -> None:
    choices = parser.add_subparsers(
        title=f"{what}s", dest=what, metavar=what.upper(), required=True, parser_class=_Parser
    )
    for name, subcommand in subcommands.items():
        added = choices.add_parser(
            name,
            help=subcommand.help,
            description=subcommand.help,
            epilog=_epilog(subcommand),
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if subcommand.verbs:
            added.has_verbs = True
            _add(added, subcommand.verbs, "verb")
            continue
        subcommand.add_to(added)
        added.set_defaults(chosen=subcommand)


def _epilog(subcommand: Subcommand) -> str:
    examples = "".join(f"  manage.py limits {example}\n" for example in subcommand.examples)
    return f"examples:\n{examples}\n{_CODES}" if examples else _CODES


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Turn expected errors into messages without a traceback."""
    try:
        yield
    except (InvalidLimit, InvalidRequest) as error:
        fail(str(error), ExitCode.USAGE)
    except ValidationError as error:
        fail("; ".join(error.messages), ExitCode.USAGE)
    except UnicodeEncodeError as error:
        _fail_for_characters(error)
    except LimitsError as error:
        fail(_one_line(error) or type(error).__name__)
    except DATABASE_ERRORS as error:
        message = _one_line(error).rstrip(".?")
        fail(f"Database error: {message}. Check that it exists and is migrated (manage.py migrate).")
    except OSError as error:
        _fail_for_the_system(error)
    except KeyboardInterrupt:
        raise CommandError("Interrupted.", returncode=ExitCode.INTERRUPTED) from None


def _one_line(error: Exception) -> str:
    """The message of an error, of which drivers make several lines; `--traceback` shows all of it."""
    return " ".join(str(error).split())


def _fail_for_characters(error: UnicodeEncodeError) -> NoReturn:
    if error.encoding == "utf-8":  # only undecodable bytes from the shell cannot be encoded
        fail("Arguments must be UTF-8 text.", ExitCode.USAGE)
    character = error.object[error.start]
    fail(f"Writing failed: the output encoding {error.encoding} has no {character!a}; set PYTHONUTF8=1 for UTF-8.")


def _fail_for_the_system(error: OSError) -> NoReturn:
    # Redirect stdout so that Python does not fail again when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
        sys.exit(ExitCode.ERROR)
    fail(f"Reading or writing failed: {error.strerror or error}.")
