"""What the checks have in common: which stores there are, and no messages where the settings are invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.core.checks import CheckMessage

from limits_app import conf
from limits_app.conf import StoreKind, StoreSettings


def reported(*checks: Callable[[], Iterator[CheckMessage]]) -> list[CheckMessage]:
    """The messages of the checks; empty if the settings are invalid, which is reported separately."""
    if conf.problems():
        return []
    return [message for check in checks for message in check()]


def stores_of(kind: StoreKind) -> Iterator[tuple[str, StoreSettings]]:
    """The aliases and settings of the stores of a kind."""
    for alias in conf.get(conf.STORES):
        settings_of_store = conf.store_settings(alias)
        if settings_of_store.kind is kind:
            yield alias, settings_of_store
