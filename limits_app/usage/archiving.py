"""What is about to be deleted, as gzipped lines of JSON: a file for each run, so that none is torn in its middle."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

__all__ = ["Archive"]


class Archive:
    """A new file of one run, made with its first lines and named `NAME.jsonl.gz`, or the first `NAME-2`, ... not taken.

    A killed run leaves at most a torn end, behind which nothing is ever written: what it lacks was not deleted.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file: Path | None = None

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Have lines on the disk, all of them; where an OSError says that it failed, the file is as it was before."""
        lines = "".join(json.dumps(row, cls=_Exact) + "\n" for row in rows)
        if not lines:
            return
        file = self._file = self._file or self._made()
        before = file.stat().st_size
        try:
            with file.open("ab") as stream:
                stream.write(gzip.compress(lines.encode()))
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            if before:
                os.truncate(file, before)
            else:
                file.unlink()
                self._file = None
            raise

    def _made(self) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = (f"{self._name}{f'-{number}' if number > 1 else ''}.jsonl.gz" for number in count(1))
        file = next(file for file in map(self._folder.joinpath, names) if _is_new(file))
        _sync(self._folder)
        return file


class _Exact(DjangoJSONEncoder):
    """Django's own with whole moments: digests of the audit log are taken of microseconds too, which it cuts off."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime) else super().default(o)


def _is_new(file: Path) -> bool:
    """Make the file, unless it is there."""
    try:
        file.open("xb").close()
    except FileExistsError:
        return False
    return True


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk too, where its file system can do that for folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
