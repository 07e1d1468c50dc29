"""What a subcommand is, and how it ends."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NoReturn

from django.core.management.base import CommandError

from limits_app.management.limits.output import Format, Output

__all__ = ["ExitCode", "Subcommand", "fail", "no_arguments"]


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
