"""Where the resolver reads what may hold: from the database, unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from limits_app.models.policy_lookup import PolicyChain, policies_for

__all__ = ["Read", "Source", "source"]

Read = Callable[[str, str | None, str, datetime], PolicyChain]
"""(resource, entity, database, now): what `models.policies_for` returns."""


class Source:
    """Reads what may hold for an entity on a resource, by `read`."""

    def __init__(self) -> None:
        self.read: Read = policies_for


source: Final = Source()
