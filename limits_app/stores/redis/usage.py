"""Collecting counted usage, which scripts keep beside the records and in one list for each tag."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from struct import Struct, iter_unpack, pack
from typing import Any, Final
from zlib import crc32

from limits_app.engine import (
    Batch,
    Count,
    PackedRejection,
    RejectionCounts,
    namespace_digest,
    rejection_label,
    unique_name,
    unpacked_rejections,
    unsealed,
)
from limits_app.stores.redis.calls import Calls
from limits_app.stores.redis.commands import RedisCommand
from limits_app.stores.redis.states import TIME

_TAG_LENGTH: Final = 2
_MOST: Final = 500
"""The largest number of counts in a batch."""
_COUNTING_SCOPE: Final = b"o"
_TIME_AT: Final = 1
_KEY_AT: Final = 14
"""Where entries of scopes that count have their keys; see usage.lua."""
_FULL: Final = b"full"
_DIGITS: Final = "01234567"
"""What the name of a batch has behind the tag: the number of the collector."""
_REJECTED: Final = "rejected"
_TIMES: Final = Struct("<ddd")
"""Of rejections: how many, and when the first and the last one was."""
_REJECTIONS_TOGETHER: Final = 100
_TAGS_OF_REJECTIONS: Final = 16
"""Over how many tags of a cluster rejections are spread."""


class _Progress:
    """How far the usage of a namespace was collected."""

    def __init__(self) -> None:
        self.next = 0
        self.full = ""
        self.began = 0


class UsageCollector:
    """Collects usage in batches, tag by tag, and starts with the first tag again after the last.

    A batch is full where others follow, so that a caller that collects until a batch is not full has seen everything.
    Usage that is counted in the meantime makes no batch full, so that this ends.
    """

    def __init__(self, run: Callable[[Any], Any], calls: Calls) -> None:
        self._run = run
        self._calls = calls
        self._names = calls.names
        self._progress: defaultdict[tuple[str, int], _Progress] = defaultdict(_Progress)
        """By namespace and collector."""

    def collect(self, namespace: str = "", collector: int = 0) -> Batch | None:
        """See CountingStore.collect_counts. Collectors take what waits in the order in which it came, each a part."""
        progress, tags = self._progress[namespace, collector], self._names.tags
        first = progress.next
        if not progress.full:
            progress.began = self._calls.clock.estimate()
        for index in (*range(first, len(tags)), *range(first)):
            answer = self._collect_with(tags[index], namespace_digest(namespace), collector, progress.began)
            if answer:
                name, is_full = answer[0].decode(), answer[1] == _FULL
                progress.next, progress.full = index, name if is_full else ""
                return _batch(name, answer[2:], is_full=is_full or first <= index < len(tags) - 1)
        return None

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        """See CountingStore.add_rejections."""
        tags = self._names.tags[:: max(len(self._names.tags) // _TAGS_OF_REJECTIONS, 1)]
        by_tag: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for rejected, times in rejections.items():
            label = json.dumps({_REJECTED: rejection_label(rejected)}).encode()
            entry = label + b"\0" + _TIMES.pack(times.number, times.first, times.last)
            by_tag[tags[crc32(label) % len(tags)]].append(entry + times.ids.encode("utf-8", "replace"))
        for tag, entries in by_tag.items():
            keys, rest = [self._names.usage(tag, namespace_digest(namespace))], iter(entries)
            while some := list(islice(rest, _REJECTIONS_TOGETHER)):
                self._run(self._calls.script("reject", keys, b"", *some))

    def forget(self, name: str, namespace: str = "") -> None:
        """See CountingStore.forget_counts."""
        tag, collector, tags = name[:_TAG_LENGTH].encode(), _DIGITS.find(name[_TAG_LENGTH:][:1]), self._names.tags
        progress = self._progress[namespace, collector]
        if tag in tags and collector >= 0:
            keys = self._keys(tag, namespace_digest(namespace), collector)
            self._step(keys, b"", b"forget", name.encode())
            if name != progress.full:
                progress.next = (tags.index(tag) + 1) % len(tags)

    def oldest_hour(self, namespace: str = "") -> float | None:
        """Return the hour since which usage waits to be collected, counted from 1970; None where none does."""
        keys = [self._names.usage(tag, namespace_digest(namespace)) for tag in self._names.tags]
        entries = [self._run(RedisCommand("LINDEX", key, "0")) for key in keys]
        return min([TIME.unpack_from(entry, _TIME_AT)[0] for entry in entries if entry], default=None)

    def _collect_with(self, tag: bytes, namespace: bytes, collector: int, began: int) -> Sequence[bytes]:
        """Return the name of the batch of a tag, whether it is full, and its counts; empty where there are none."""
        shared = self._keys(tag, namespace, collector)
        while True:
            answer = self._step(shared, pack("<dd", _MOST, began), b"look")
            if not answer or answer[0]:
                return answer
            is_full, *entries = answer[1:]
            keys = [entry[_KEY_AT:].partition(b"\0")[0] for entry in entries if entry.startswith(_COUNTING_SCOPE)]
            name = b"%s%d%s" % (tag, collector, unique_name().encode())
            answer = self._step([*keys, *shared], b"", b"take", name, is_full, *entries)
            if answer:
                return answer

    def _keys(self, tag: bytes, namespace: bytes, collector: int) -> list[bytes]:
        return [self._names.batch(tag, namespace, collector), self._names.usage(tag, namespace)]

    def _step(self, keys: Sequence[bytes], plan: bytes, *arguments: bytes) -> Sequence[bytes]:
        reply: Sequence[bytes] = self._run(self._calls.script("collect", keys, plan, *arguments))
        return reply


def _batch(name: str, stored: Iterable[bytes], *, is_full: bool) -> Batch:
    counts, rejections = list[Count](), list[PackedRejection]()
    for entry in stored:
        packed, _, rest = entry.partition(b"\0")
        label = json.loads(packed)
        if isinstance(label, dict):
            number, first, last = _TIMES.unpack_from(rest)
            ids = rest[_TIMES.size :].decode("utf-8", "replace")
            rejections.append((*label[_REJECTED], int(number), first, last, ids))
        else:
            counts.append(_count(label, rest))
    return Batch(name, counts, is_full, unpacked_rejections(rejections))


def _count(label: Sequence[Any], numbers: bytes) -> Count:
    resource, sealed, shared, member, keys, plan = label
    hour, *amounts = [int(number) for (number,) in iter_unpack("<d", numbers)]
    admitted = {key: amount for key, amount in zip(keys, amounts, strict=True) if amount}
    return unsealed(Count(resource, sealed, shared, member, hour, admitted, plan))
