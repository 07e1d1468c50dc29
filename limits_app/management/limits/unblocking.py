"""`unblock`: lifts the blocks of an entity or a pattern."""

from __future__ import annotations

from argparse import Namespace

from limits_app.management.limits.arguments import ENTITY
from limits_app.management.limits.output import Output
from limits_app.management.limits.subcommand import changing, confirm, subcommand
from limits_app.policies import Access, verdict_on
from limits_app.services.blocked_requests import lift_blocks


@subcommand(
    "remove the blocks of an entity or a pattern: its flag, and its blocked policies",
    ENTITY,
    examples=("unblock user:42", "unblock ip:203.0.113.0/24 --yes --reason 'our own office'"),
    writes=True,
)
def unblock(options: Namespace, out: Output) -> None:
    """Lift the blocks, and name a pattern, plan or parent that still blocks the entity."""
    confirm(f"Lift all blocks of {options.entity}?", options, out)
    with changing(options, out):
        lift_blocks(options.entity)
        verdict = verdict_on(options.entity)
    if verdict.access is Access.BLOCKED and verdict.reason is not None:
        by = verdict.reason.subject or "the system, whose block of everything ends by `limits system delete --total`"
        out.note(f"{options.entity} is still blocked by {by}: {verdict.reason.policy.level}.")
