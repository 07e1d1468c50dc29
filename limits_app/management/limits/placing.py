"""`resource store`: where a resource is counted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from django.db import router

from limits_app.management.limits.arguments import takes_resource
from limits_app.management.limits.changing import changing
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand
from limits_app.models import Resource
from limits_app.services import definitions

__all__ = ["STORE"]


def _set(options: Namespace, out: Output) -> ExitCode:
    with changing(options, out):
        home = router.db_for_write(Resource)
        resource = Resource.objects.using(home).filter(name=options.resource).first() or Resource(name=options.resource)
        definitions.save(definitions.read(resource, {"store": options.alias}, partial=True))
    return ExitCode.OK


def _takes(parser: ArgumentParser) -> None:
    takes_resource(parser)
    parser.add_argument("alias", metavar="ALIAS", help="one of LIMITS['STORES'], or '' for the default one")


STORE: Final = Subcommand(
    "say in which store a resource is counted; it starts anew there",
    _set,
    _takes,
    ("resource store reports.export shared", "resource store reports.export ''"),
    writes=True,
)
