"""`candidates`: other limits that are evaluated beside a policy."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any, Final

from limits_app import services as limits
from limits_app.management.limits.arguments import percent, positive
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import ExitCode, Subcommand, changing, fail
from limits_app.management.limits.tables import Table
from limits_app.models import Policy
from limits_app.services.candidates import policy_of_id

_COLUMNS: Final = ("policy_id", "policy", "limits", "state", "percent", "evaluated", "rejected", "rejected_percent")


def _list(options: Namespace, out: Output) -> ExitCode:
    found = limits.candidates()
    rows = [tuple(getattr(one, name) for name in _COLUMNS) for one in found]
    out.show(Table(_COLUMNS, rows, "There are no candidates."), data=[one.as_dict() for one in found])
    return ExitCode.OK


def _set(options: Namespace, out: Output) -> ExitCode:
    with changing(options, out):
        limits.set_candidate(
            policy_of_id(options.policy),
            options.limits,
            percent=options.percent,
            revert_percent=options.revert_percent,
            revert_minutes=options.revert_minutes,
            reason=options.reason,
        )
    return ExitCode.OK


def _changes(change: Callable[[Policy], Any], question: str) -> Callable[[Namespace, Output], ExitCode]:
    def run(options: Namespace, out: Output) -> ExitCode:
        policy = policy_of_id(options.policy)
        if not options.dry_run:
            out.confirm(f"{question} of {policy}?", yes=options.yes)
        with changing(options, out):
            if change(policy) is False:
                fail(f"The policy {policy} has no candidate.")
        return ExitCode.OK

    return run


def _takes_policy(parser: ArgumentParser) -> None:
    parser.add_argument("policy", type=positive, metavar="POLICY", help="the id of the policy")


def _takes_candidate(parser: ArgumentParser) -> None:
    _takes_policy(parser)
    parser.add_argument("limits", nargs="+", metavar="LIMIT", help="such as calls=100/min")
    parser.add_argument("--percent", type=percent, default=100, help="percentage of entities to evaluate (100)")
    parser.add_argument("--revert-percent", type=percent, help="once promoted, revert above this share of rejections")
    parser.add_argument("--revert-minutes", type=positive, default=10, help="how long rejections are counted (10)")


_CHANGES: Final[Mapping[str, tuple[str, Callable[[Policy], Any], str]]] = {
    "promote": ("give a policy the limits of its candidate", limits.promote_candidate, "Promote the candidate"),
    "revert": (
        "give a policy its limits from before the promotion",
        limits.revert_candidate,
        "Revert the promoted candidate",
    ),
    "discard": ("delete the candidate of a policy", limits.discard_candidate, "Discard the candidate"),
}
CANDIDATES: Final = Subcommand(
    "evaluate other limits beside those of a policy, and promote, revert or discard them",
    verbs={
        "list": Subcommand("list candidates and what they would reject", _list, examples=("candidates list",)),
        "set": Subcommand(
            "set the candidate of a policy",
            _set,
            _takes_candidate,
            ("candidates set 7 calls=50/min --revert-percent 5",),
            writes=True,
        ),
        **{
            name: Subcommand(
                what, _changes(change, question), _takes_policy, (f"candidates {name} 7 --yes",), writes=True
            )
            for name, (what, change, question) in _CHANGES.items()
        },
    },
)
