"""How settings are checked: a function gives the parsed value, or a ValueError that says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from limits_app.core.amounts import shown

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = [
    "EntityOfRequest",
    "StoreKind",
    "StoreSettings",
    "UnknownKeys",
    "alias",
    "directory",
    "function",
    "one_of",
    "seconds",
    "stores",
    "whole_number",
]

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
EntityOfRequest = Callable[["HttpRequest"], str | None]

MAX_MEGABYTES: Final = 1024 * 1024
_ALIAS: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class StoreKind(StrEnum):
    """Where the state of limits can live."""

    PROCESS = "process"
    MEMORY = "memory"


class UnknownKeys(StrEnum):
    """What happens when a request names a limit key that its set does not have."""

    WARN = "warn"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One entry of `STORES`; what it leaves out stands in `LIMITS` itself."""

    kind: StoreKind
    state_dir: Path | None = None
    map_megabytes: int | None = None


def _wrong(expected: str, value: object) -> ValueError:
    return ValueError(f"must be {expected}, not {shown(value)}")


def alias(value: object) -> str:
    """Parse the name of a store."""
    if not isinstance(value, str) or not _ALIAS.fullmatch(value):
        raise _wrong("a letter followed by at most 63 letters, digits, '_' or '-'", value)
    return value


def directory(value: object) -> Path | None:
    """Parse a directory that has to mean the same to every process."""
    if value is None:
        return None
    if not isinstance(value, str | Path) or "\0" in str(value) or not Path(value).is_absolute():
        raise _wrong("an absolute path, so that every process means the same directory, or None", value)
    return Path(value)


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Make a parser of whole numbers in a range."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(f"a whole number from {least} to {most}", value)
        return value

    return parse


def seconds(value: object) -> float:
    """Parse a length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise _wrong("a number of seconds above 0", value)
    return value


def function(value: object) -> str | EntityOfRequest:
    """Parse a function, or the dotted path of one that is imported on first use."""
    if callable(value):
        return value
    if not isinstance(value, str) or "." not in value or not all(part.isidentifier() for part in value.split(".")):
        raise _wrong("a function that takes a request, or the dotted path of one", value)
    return value


def one_of(choices: type[E]) -> Callable[[object], E]:
    """Make a parser of a closed set of words."""

    def parse(value: object) -> E:
        try:
            return choices(value if isinstance(value, str) else "")
        except ValueError:
            raise _wrong(" or ".join(repr(str(choice)) for choice in choices), value) from None

    return parse


_STORE_OPTIONS: Final[Mapping[StoreKind, Mapping[str, Callable[[object], Any]]]] = {
    StoreKind.PROCESS: {"STATE_DIR": directory, "MAP_MEGABYTES": whole_number(1, MAX_MEGABYTES)},
    StoreKind.MEMORY: {},
}


def stores(value: object) -> Mapping[str, StoreSettings]:
    """Parse what is said about each store, by alias."""
    if not isinstance(value, Mapping) or not value:
        raise _wrong("a dict such as {'default': {'KIND': 'process'}}", value)
    return {alias(name): _store(name, entry) for name, entry in value.items()}


def _store(name: str, entry: object) -> StoreSettings:
    if not isinstance(entry, Mapping) or "KIND" not in entry:
        raise ValueError(f"{name!r} must be a dict with a 'KIND', such as {{'KIND': 'process'}}, not {shown(entry)}")
    kind = _option(name, entry, "KIND", one_of(StoreKind))
    options = _STORE_OPTIONS[kind]
    for option in entry:
        if option != "KIND" and option not in options:
            raise ValueError(f"{name!r} does not take {shown(option)}, only {', '.join(map(repr, ['KIND', *options]))}")
    taken = {option.lower(): _option(name, entry, option, options[option]) for option in options if option in entry}
    return StoreSettings(kind, **taken)


def _option(name: str, entry: Mapping[str, object], option: str, parse: Callable[[object], T]) -> T:
    try:
        return parse(entry[option])
    except ValueError as error:
        raise ValueError(f"{name!r}: {option} {error}") from None
