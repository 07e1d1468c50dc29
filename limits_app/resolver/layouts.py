"""Layouts: how the limits of a scope are kept in a store, and whether what it admits is counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from limits_app import conf
from limits_app.core.limits import AnyLimit
from limits_app.core.record import Schema, schema_of
from limits_app.core.store import Store

__all__ = ["LayOut", "layouts"]

LayOut = Callable[[tuple[AnyLimit, ...]], Schema]
"""Compiles the limits of one scope."""


def layouts(store: Store, *, counts: bool = True) -> LayOut:
    """What compiles limits for a store; they are counted where it can count, and the settings want it.

    What is only tried is not usage: then `counts` is False.
    """
    return partial(schema_of, lease_us=store.lease_us, counts_usage=counts and store.counting and conf.get(conf.USAGE))
