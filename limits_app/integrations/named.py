"""Resources that are named by what other libraries call them."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from limits_app.core.keys import RESOURCE_PATTERN

__all__ = ["resource_named"]

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_./-]+")
_LONGEST_STEM: Final = 50


@lru_cache(maxsize=4096)
def resource_named(name: str) -> str:
    """Give a name as it is where a resource can have it, else what is left of it and a digest: no two names meet."""
    if RESOURCE_PATTERN.fullmatch(name):
        return name
    stem = _FORBIDDEN.sub("-", name)[-_LONGEST_STEM:]
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"n{stem}-{digest}"
