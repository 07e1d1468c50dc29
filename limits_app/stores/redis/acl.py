"""What a user of an access control list needs: read from the scripts, so that the list has what they call."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

_CALLED: Final = re.compile(r"\b(?:p?call|write_later)\('([A-Z]+)'")
_CONNECTION: Final = ("EVAL", "EVALSHA", "HELLO", "SELECT", "SUBSCRIBE")
"""To connect, run scripts and listen; SELECT for another database than the first one.

redis-py also sends CLIENT SETINFO, and ignores the error; servers before 7.2 know no right for it.
"""
_CLUSTER: Final = ("CLUSTER|SLOTS", "COMMAND")
"""To learn which server of a cluster has which keys."""
_BESIDE_SCRIPTS: Final = ("GET", "HKEYS", "INFO", "LINDEX", "MGET", "PUBLISH", "SET")
"""Sent without a script; INFO for the checks."""


@cache
def acl_commands() -> tuple[str, ...]:
    """Return the commands of a store, in alphabetical order."""
    scripts = [path.read_text() for path in Path(__file__).parent.glob("*.lua")]
    called = {name for text in scripts for name in _CALLED.findall(text)}
    return tuple(sorted(called.union(_CONNECTION, _CLUSTER, _BESIDE_SCRIPTS)))


def acl_rules(prefix: str) -> list[str]:
    """Return the rules for a user of stores whose keys begin with a prefix, as ACL SETUSER takes them."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
    commands = [f"+{name.lower()}" for name in acl_commands()]
    return ["resetkeys", f"~{pattern}", "resetchannels", f"&{pattern}", "-@all", *commands]
