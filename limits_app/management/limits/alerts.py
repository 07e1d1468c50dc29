"""`alerts`: rules for alerts, and sending what is due."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from typing import Any, Final

from limits_app.alerts import NotDelivered, send, send_test
from limits_app.management.limits.arguments import OF_RESOURCE, argument, positive
from limits_app.management.limits.output import Output, Table
from limits_app.management.limits.subcommand import ExitCode, Subcommand, confirm, fail, subcommand
from limits_app.models import AlertChannel, AlertKind, AlertRule
from limits_app.services import definitions

_COLUMNS: Final = ("name", "enabled", "kind", "percent", "rejections", "resource", "entity", "channel", "target")
_RULE: Final = argument("rule", metavar="RULE", help="name of the alert rule, such as on-call")
_NOT_AUDITED: Final = "--reason cannot be used here: the audit log does not record alert rules."


def _secret(variable: str) -> str:
    if not (secret := os.environ.get(variable)):
        raise ArgumentTypeError(f"the environment variable {variable!r} is not set")
    return secret


def _row(rule: AlertRule) -> tuple[object, ...]:
    return tuple(getattr(rule, column) for column in _COLUMNS)


@subcommand("list all alert rules", examples=("alerts list",))
def _list(options: Namespace, out: Output) -> None:
    out.show(Table(_COLUMNS, [_row(rule) for rule in AlertRule.objects.all()], "There are no alert rules."))


@subcommand(
    "add an alert rule, or change the given options of one",
    _RULE,
    argument("--kind", choices=AlertKind.values, help="the event that an alert is sent for"),
    argument("--percent", type=positive, help="of a threshold: one of LIMITS['NEAR_THRESHOLDS'], by default 80"),
    argument("--rejections", type=positive, metavar="NUMBER", help="of rejections: an alert above this many a minute"),
    OF_RESOURCE,
    argument("--entity", help="only of this entity or pattern"),
    argument("--channel", choices=AlertChannel.values, help="how it is sent; by default by e-mail"),
    argument("--target", help="e-mail addresses with commas between them, or the URL of a webhook"),
    argument(
        "--secret-from",
        dest="secret",
        type=_secret,
        metavar="VARIABLE",
        help="the environment variable with the secret that signs requests to a webhook",
    ),
    argument("--enabled", action=BooleanOptionalAction, default=None, help="whether it sends alerts"),
    examples=(
        "alerts set on-call --kind threshold --percent 80 --target ops@example.com",
        "alerts set on-call --no-enabled",
    ),
    writes=True,
)
def _set(options: Namespace, out: Output) -> None:
    if options.reason:
        fail(_NOT_AUDITED, ExitCode.USAGE)
    names = (*_COLUMNS[1:], "secret")
    data: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    secret = data.pop("secret", None)
    rule = AlertRule.objects.filter(name=options.rule).first() or AlertRule(name=options.rule)
    definition = definitions.read(rule, data, partial=True)
    if secret is not None:
        rule.secret = secret
    if not options.dry_run:
        definitions.save(definition)
    out.show(Table(_COLUMNS, [_row(rule)]))
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")


@subcommand("delete an alert rule and its alerts", _RULE, examples=("alerts delete on-call --yes",), writes=True)
def _delete(options: Namespace, out: Output) -> None:
    if options.reason:
        fail(_NOT_AUDITED, ExitCode.USAGE)
    rule = _stored(options.rule)
    confirm(f"Delete the alert rule {rule.name} and its alerts?", options, out)
    if options.dry_run:
        out.note("This was a dry run: nothing was changed.")
        return
    rule.delete()
    out.note("Deleted.")


@subcommand(
    "send the alerts that are due; run it every minute without Celery", examples=("alerts send",), periodic=True
)
def _send(options: Namespace, out: Output) -> ExitCode:
    done = send()
    out.show(Table(("sent", "failed"), [(done.sent, done.failed)]), data=done.as_dict())
    return ExitCode.ERROR if done.failed else ExitCode.OK


@subcommand("send a test alert of a rule now", _RULE, examples=("alerts test on-call",))
def _test(options: Namespace, out: Output) -> None:
    try:
        send_test(_stored(options.rule))
    except NotDelivered as error:
        fail(f"The test alert was not sent: {error.cause}.")
    out.note("The test alert was sent.")


def _stored(name: str) -> AlertRule:
    rule = AlertRule.objects.filter(name=name).first()
    if rule is None:
        fail(f"No alert rule is named {name!r}.")
    return rule


ALERTS: Final = Subcommand(
    "list, set and delete alert rules, and send alerts",
    verbs={"list": _list, "set": _set, "delete": _delete, "send": _send, "test": _test},
)
