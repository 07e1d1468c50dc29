"""The runtime: what the program around the engine decides, as one value; `apps` installs that of a Django site."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from limits_app.engine.namespaces import WHOLE_SITE, Namespace

DEFAULT_CURRENCIES: Final = ("usd", "eur")
DEFAULT_PRIORITIES: Final = ("high", "normal", "low")


class LeaseHolder(Protocol):
    """The holder of permits: they are renewed as long as it exists, and it is notified when their lease has run out."""

    lost_lease: bool
    """Whether a lease ran out while it was held, so that others may hold the permits."""

    def lose_lease(self) -> None:
        """Act on a lease that has run out."""


def _no_store(mode: str) -> object:
    raise LookupError(f"no store is known for mode {mode!r}: import LimitSet from limits_app, or pass store=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What the program around the engine decides; without one, the defaults.

    - `is_enabled` returns whether the limits that workers get are enforced.
    - `unknown_keys_raise` returns whether a requested key that a set does not have is an error instead of a warning.
    - `unpriced_is_free` returns whether a resource without a price costs nothing, instead of being an error, where it
      is limited in money.
    - `currencies` returns the keys of limits that are currencies, whose amounts have six decimals.
    - `priorities` returns the classes of requests, the highest first; one of them is `normal`.
    - `namespace` returns the namespace in which limits are resolved and counted now.
    - `secrets` returns the secrets of the site, by the first of which the names of entities in stores are sealed.
    - `lease_lost` is called with each acquisition whose lease ran out while it was held.
    - `open_store` returns the store that limit sets of a mode use.
    """

    is_enabled: Callable[[], bool] = lambda: True
    unknown_keys_raise: Callable[[], bool] = lambda: False
    unpriced_is_free: Callable[[], bool] = lambda: False
    currencies: Callable[[], Collection[str]] = lambda: DEFAULT_CURRENCIES
    priorities: Callable[[], Sequence[str]] = lambda: DEFAULT_PRIORITIES
    namespace: Callable[[], Namespace] = lambda: WHOLE_SITE
    secrets: Callable[[], Sequence[str | bytes]] = lambda: (b"",)
    lease_lost: Callable[[LeaseHolder], object] = lambda _: None
    open_store: Callable[[str], object] = _no_store


_INSTALLED: Final = [Runtime()]


def present() -> Runtime:
    """Return the runtime of this process."""
    return _INSTALLED[-1]


def install(runtime: Runtime) -> None:
    """Make it the runtime of this process, when that starts."""
    _INSTALLED[-1] = runtime


@contextmanager
def installed(runtime: Runtime) -> Iterator[None]:
    """Have another runtime in the block, for tests."""
    before = present()
    install(runtime)
    try:
        yield
    finally:
        install(before)
