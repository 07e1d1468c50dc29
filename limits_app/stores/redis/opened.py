"""The Redis stores that this process has opened: one for each server and way to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from limits_app.core.forking import lock_over_forks

if TYPE_CHECKING:
    from limits_app.stores.redis.store import RedisStore

__all__ = ["forget_aliases", "open_store"]

_OPENED: Final[dict[tuple[object, ...], RedisStore]] = {}
_LOCK: Final = lock_over_forks()


def open_store(kind: type[RedisStore], alias: str | None, url: str | None, options: Mapping[str, Any]) -> RedisStore:
    """Open a store of a kind, or give the one that is open."""
    options = {**kind.DEFAULTS, **options}
    place = (alias, kind, url, *sorted(options.items()))
    with _LOCK:
        store = _OPENED.get(place)
        if store is None:
            given = options if alias is None else {"alias": alias, **options}
            store = _OPENED[place] = kind(url=url, **given)
        return store


def forget_aliases() -> None:
    """Have the stores that have an alias opened anew, because it is another server's now."""
    with _LOCK:
        for place in [place for place in _OPENED if place[0] is not None]:
            del _OPENED[place]
