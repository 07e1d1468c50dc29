"""Namespaces: parts of a site, such as tenants, with their own configuration and counters."""

from __future__ import annotations

from typing import Final, NamedTuple


class Namespace(NamedTuple):
    """The names under which stores keep a part of a site; the empty ones are those of a site without parts.

    `configuration` is that of the version and the log of changes, and `counters` that of the keys of scopes.
    """

    configuration: str = ""
    counters: str = ""


WHOLE_SITE: Final = Namespace()
