"""The keys of `LIMITS`: for each its default, the id of its check, what it expects, and its line in the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from limits_app.conf import parsers
from limits_app.conf.parsers import EntityOfRequest, StoreKind, StoreSettings, UnknownKeys

T = TypeVar("T")


@dataclass(frozen=True)
class Key(Generic[T]):
    """One key of `LIMITS`: what it expects, how a value is checked, and its line in the docs."""

    name: str
    default: T
    check_id: str
    expects: str
    doc: str
    parse: Callable[[object], T]


STORE: Final = Key(
    "STORE",
    "default",
    "limits_app.E010",
    expects="alias of STORES",
    doc="The store that is used where nothing else is said.",
    parse=parsers.alias,
)
STORES: Final = Key[Mapping[str, StoreSettings]](
    "STORES",
    {"default": StoreSettings(StoreKind.PROCESS)},
    "limits_app.E011",
    expects="dict of alias to {'KIND': 'process' or 'memory', ...}",
    doc="Where the state of limits lives; a process store may have a STATE_DIR and MAP_MEGABYTES of its own.",
    parse=parsers.stores,
)
STATE_DIR: Final = Key(
    "STATE_DIR",
    None,
    "limits_app.E012",
    expects="absolute path, or None",
    doc="The directory of process stores; None lets the store choose one that is private to the user.",
    parse=parsers.directory,
)
MAP_MEGABYTES: Final = Key(
    "MAP_MEGABYTES",
    64,
    "limits_app.E013",
    expects="whole number from 1 to 1048576",
    doc="The size of a process store's file, reserved on the disk before use.",
    parse=parsers.whole_number(1, parsers.MAX_MEGABYTES),
)
UNKNOWN_KEYS: Final = Key(
    "UNKNOWN_KEYS",
    UnknownKeys.WARN,
    "limits_app.E014",
    expects="'warn' or 'raise'",
    doc="What happens when a request names a limit key that its set does not have.",
    parse=parsers.one_of(UnknownKeys),
)
ENTITY_OF_REQUEST: Final = Key[str | EntityOfRequest](
    "ENTITY_OF_REQUEST",
    "limits_app.integrations.identity.entity_of_request",
    "limits_app.E015",
    expects="function, or its dotted path",
    doc="Takes a request and gives the identifier of the entity that makes it, or None for the site itself.",
    parse=parsers.function,
)
RESOLVER_TTL_SECONDS: Final = Key[float](
    "RESOLVER_TTL_SECONDS",
    60,
    "limits_app.E016",
    expects="number of seconds above 0",
    doc="How long a compiled limit set is used at most before the database is asked again.",
    parse=parsers.seconds,
)
RESOLVER_MAX_ENTRIES: Final = Key(
    "RESOLVER_MAX_ENTRIES",
    10_000,
    "limits_app.E017",
    expects="whole number from 1 to 1000000000",
    doc="How many compiled limit sets each process keeps.",
    parse=parsers.whole_number(1, 10**9),
)

KEYS: Final[Mapping[str, Key[Any]]] = {
    key.name: key
    for key in (
        STORE,
        STORES,
        STATE_DIR,
        MAP_MEGABYTES,
        UNKNOWN_KEYS,
        ENTITY_OF_REQUEST,
        RESOLVER_TTL_SECONDS,
        RESOLVER_MAX_ENTRIES,
    )
}
