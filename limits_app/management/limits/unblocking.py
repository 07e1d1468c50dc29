"""`unblock`: lifts the blocks of an entity or a pattern."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

from limits_app.management.limits.arguments import ENTITY
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import changing, confirm, subcommand
from limits_app.models.patterns import is_pattern
from limits_app.policies import Access, verdict_on
from limits_app.services import check
from limits_app.services.amounts import one_of_each
from limits_app.services.blocked_requests import lift_blocks
from limits_app.services.timed_blocks import resources_with_blocks


@subcommand(
    "remove the blocks of an entity or a pattern: its flag, its blocked policies, and blocks for a time of URL rules",
    ENTITY,
    examples=("unblock user:42", "unblock ip:203.0.113.0/24 --yes --reason 'our own office'"),
    writes=True,
)
def unblock(options: Namespace, out: Output) -> None:
    """Lift the blocks, and name what still rejects the entity: a pattern, plan or parent, or a limit of a URL rule."""
    confirm(f"Lift all blocks of {options.entity}?", options, out)
    with changing(options, out):
        lift_blocks(options.entity)
        verdict = verdict_on(options.entity)
    if verdict.access is Access.BLOCKED and verdict.reason is not None:
        by = verdict.reason.subject or "the system, whose block of everything ends by `limits system delete --total`"
        out.note(f"{options.entity} is still blocked by {by}: {verdict.reason.policy.level}.")
    elif not (options.dry_run or is_pattern(options.entity)):
        for resource in resources_with_blocks():
            if not check(resource, entity=options.entity, requested=partial(one_of_each, {})).allowed:
                out.note(
                    f"{options.entity} has used up a limit of {resource}, which still rejects it: "
                    f"`limits reset {resource} --entity ...` forgets what it has used."
                )
