"""What this process wrote last, by scope: where nobody else writes, the next step needs not read first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.stores.database.records import Record

__all__ = ["Latest"]

_MOST: Final = 4096


class Latest:
    """Remembers records, and whether others write in their scopes, too.

    It decides nothing: whoever goes by what stands here must have the database compare stamps.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, tuple[Record, bool]] = {}

    def own(self, scope: bytes) -> Record | None:
        """The record that was written last, when this process has written twice in a row."""
        record, is_alone = self._records.get(scope) or (None, False)
        return record if is_alone else None

    def written(self, record: Record, before: int | None) -> None:
        """A record was written over the row with the stamp `before` (None: there was no row)."""
        last = self._records.pop(record.scope, None)
        if len(self._records) >= _MOST:
            self._records.clear()
        self._records[record.scope] = record, before is None or (last is not None and last[0].stamp == before)

    def forget(self, scope: bytes) -> None:
        """Somebody else has written in a scope."""
        self._records.pop(scope, None)

    def clear(self) -> None:
        """Forget everything."""
        self._records.clear()
