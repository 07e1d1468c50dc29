"""Looking through entries of the state file that belong together."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb

__all__ = ["under"]


def under(txn: lmdb.Transaction[bytes], prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """All entries whose key starts with a prefix, from where it goes on with `start`."""
    with txn.cursor() as cursor:
        if cursor.set_range(prefix + start):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    return
                yield key, value
