"""`alerts`: send the alerts that are due, and test a rule."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from limits_app.alerts import NotDelivered, send, send_test
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, fail
from limits_app.management.limits.tables import Table
from limits_app.models import AlertRule


def _send(options: Namespace, out: Output) -> ExitCode:
    done = send()
    out.show(Table(("sent", "failed"), [(done.sent, done.failed)]), data=done.as_dict())
    return ExitCode.ERROR if done.failed else ExitCode.OK


def _test(options: Namespace, out: Output) -> ExitCode:
    rule = AlertRule.objects.filter(name=options.rule).first()
    if rule is None:
        fail(f"No alert rule is named {options.rule!r}.")
    try:
        send_test(rule)
    except NotDelivered as error:
        fail(f"The test alert was not sent: {error}.")
    out.note("The test alert was sent.")
    return ExitCode.OK


def _takes_rule(parser: ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="name of the alert rule")


ALERTS: Final = Subcommand(
    "send alerts",
    verbs={
        "send": Subcommand(
            "send the alerts that are due; run it every minute without Celery", _send, examples=("alerts send",)
        ),
        "test": Subcommand("send a test alert of a rule now", _test, _takes_rule, ("alerts test on-call",)),
    },
)
