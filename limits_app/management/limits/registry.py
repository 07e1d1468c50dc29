"""Every subcommand, in the order in which `--help` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from limits_app.management.limits import (
    asking,
    doctor,
    files,
    giving,
    log,
    placing,
    policies,
    pools,
    records,
    simulate,
    top,
)
from limits_app.management.limits.completion import completion
from limits_app.management.limits.subcommand import Subcommand

__all__ = ["SUBCOMMANDS"]

_SUBCOMMANDS: Final[Mapping[str, Subcommand]] = {
    "system": policies.SYSTEM,
    "resource": replace(policies.RESOURCE, verbs={**policies.RESOURCE.verbs, "store": placing.STORE}),
    "entity": policies.ENTITY,
    "pool": pools.POOL,
    "check": asking.CHECK,
    "explain": asking.EXPLAIN,
    "status": asking.STATUS,
    "top": top.TOP,
    "boost": giving.BOOST,
    "reset": giving.RESET,
    "usage": records.USAGE,
    "snapshot": records.SNAPSHOT,
    "prune": records.PRUNE,
    "audit": log.AUDIT,
    "apply": files.APPLY,
    "export": files.EXPORT,
    "simulate": simulate.SIMULATE,
    "doctor": doctor.DOCTOR,
}
SUBCOMMANDS: Final[Mapping[str, Subcommand]] = {**_SUBCOMMANDS, "completion": completion(_SUBCOMMANDS)}
