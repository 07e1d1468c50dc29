"""Counting: what scripts are told so that they count what they charge, and how their counts are collected.

What a scope counts stands beside its record while the hour lasts. What is closed, and which scopes are counting, is
known beside all scopes with one tag; so whoever collects has no need to look for anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Any, Final, NamedTuple

from limits_app.core.counting import Batch, Count, label_of
from limits_app.core.keys import unique_name
from limits_app.core.parts import Ask, Charges
from limits_app.stores.redis.commands import Prepared, bulk
from limits_app.stores.redis.moments import Moments
from limits_app.stores.redis.names import Names
from limits_app.stores.redis.scripts import KEPT_US, script

__all__ = ["NOTHING", "Collecting", "Settled", "counting_plan"]

_PAIR: Final = Struct("<2d")
_NUMBER: Final = Struct("<d")
_TAG_LENGTH: Final = 2
_MOST: Final = 500
_COUNTING_SCOPE: Final = b"o"
_FULL: Final = b"full"
_NOT_COUNTED: Final = _PAIR.pack(0, 0)


class Settled(NamedTuple):
    """Changes that are counted in the hour in which they were taken, those of permits only if that is said."""

    changes: Charges
    taken_at: int
    permits: bool


NOTHING: Final = Settled((), 0, permits=False)


def counting_plan(asks: Sequence[Ask], *, permits: bool) -> bytes:
    """What scripts are told so that they count amounts, or changes of amounts, of limits that stand scope by scope.

    Without `permits` theirs are not counted: what is given back has been used.
    """
    told, labels = list[bytes](), list[bytes]()
    for part, group in groupby(enumerate(asks), key=lambda place_and_ask: place_and_ask[1].part):
        if not part.counts:
            told.append(b"\0" + _NOT_COUNTED)
            labels.append(b"\0")
            continue
        limits = [_NOT_COUNTED] * len(part.layout.rules)
        for place, ask in group:
            if permits or not ask.rule.is_permit:
                limits[ask.index] = _PAIR.pack(place * _NUMBER.size, ask.rule.parts_per_unit)
        told += [b"<d%s\0" % (b"d" * len(limits)), *limits]
        labels.append(b"%s\0" % label_of(part.scoped.scope, [rule.key for rule in part.layout.rules]))
    return b"".join([*told, *labels])


class Collecting:
    """Takes batches out of the counts, tag by tag, and begins with the first one again when all are done.

    A batch of one tag is full where others follow, so that whoever collects until one is not has seen them all;
    what is counted meanwhile makes none full, so that this ends.
    """

    def __init__(self, links: Any, names: Names, moments: Moments) -> None:
        self._links = links
        self._names = names
        self._moments = moments
        self._tags = names.counting_tags
        self._next = 0
        self._full = ""
        self._began = 0

    def collect(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        first = self._next
        if not self._full:
            self._began = self._moments.estimate()
        for place in (*range(first, len(self._tags)), *range(first)):
            told = self._collect_beside(self._tags[place])
            if told:
                name, is_full, counts = told[0].decode(), told[1] == _FULL, list(map(_count, told[2:]))
                self._next, self._full = place, name if is_full else ""
                return Batch(name, counts, is_full or first <= place < len(self._tags) - 1)
        return None

    def _collect_beside(self, tag: bytes) -> Sequence[bytes]:
        """The name of the batch of a tag, whether it is full, and its counts; nothing where there are none."""
        names, batch = self._names.counts(tag), self._names.batch(tag)
        while True:
            told = self._ask("pending", tag, [names[1], batch], _PAIR.pack(_MOST, self._began))
            if not told or told[0]:
                return told  # type: ignore[no-any-return]  # as the script has it
            _, full, *found = told
            scopes = [name for name in found if name.startswith(_COUNTING_SCOPE)]
            closed = [name for name in found if not name.startswith(_COUNTING_SCOPE)]
            keys = [batch, *[name[len(_COUNTING_SCOPE) :] for name in scopes], *names]
            told = self._ask("collect", tag, keys, _NUMBER.pack(KEPT_US), _fresh_name(tag), full, *scopes, *closed)
            if told:
                return told  # type: ignore[no-any-return]

    def forget(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        tag = name[:_TAG_LENGTH].encode()
        if tag in self._tags:
            self._ask("forget", tag, [self._names.batch(tag)], b"", name.encode())
            if name != self._full:
                self._next = (self._tags.index(tag) + 1) % len(self._tags)

    def _ask(self, verb: str, tag: bytes, keys: Sequence[bytes], plan: bytes, *extra: bytes) -> Any:
        prepared = Prepared(script(verb), keys, plan, extra=len(extra), tag=tag)
        return self._links.run(prepared.call(self._moments.header(), b"".join(map(bulk, extra))))


def _fresh_name(tag: bytes) -> bytes:
    return tag + unique_name().encode()


def _count(told: bytes) -> Count:
    label, _, sums = told[_NUMBER.size :].partition(b"\0")
    resource, entity, shared, member, keys = json.loads(label)
    hour, *amounts = [int(number) for (number,) in _NUMBER.iter_unpack(told[: _NUMBER.size] + sums)]
    found = {key: amount for key, amount in zip(keys, amounts, strict=True) if amount}
    return Count(resource, entity, shared, member, hour, found)
