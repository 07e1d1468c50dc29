"""The log of changes: what has changed since a version, or None where that is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

from limits_app.acquiring import Store
from limits_app.engine import ALL, COOLING, EVERYTHING, GENERAL, MOST_CHANGES, MOST_CLIENTS, ROWS, Change
from limits_app.engine.limits import RateLimit
from limits_app.testing.conformance.concurrency import THREADS, TIMEOUT, switching_every_microsecond, together
from limits_app.testing.conformance.contract import KEY, Contract, limits_of

EACH = 10
"""How many changes each thread announces."""


class ChangeLogs(Contract):
    """Versions and the changes that have made them."""

    def test_each_version_of_the_log_has_the_changes_after_it(self, store: Store) -> None:
        announcements = [
            [clients(1)[0]],
            [ROWS],
            clients(3),
            [ALL],
            [GENERAL],
            [COOLING],
            clients(2),
            [*clients(1), ROWS],
            [*clients(2), ALL],
        ]
        assert store.changes_since(store.version()) == (0, ())
        versions = [store.advance_version(announced) for announced in announcements]
        for index, version in enumerate(versions):
            after = [change for announced in announcements[index + 1 :] for change in announced]
            changes = store.changes_since(version)
            assert changes is not None
            assert changes[0] == store.version() == versions[-1]
            assert len(changes[1]) == len(set(changes[1]))
            assert set(changes[1]) == set(after)

    def test_changes_after_an_unknown_version_are_unknown(self, store: Store) -> None:
        assert store.changes_since(1) is None
        first = store.advance_version(clients(1))
        assert store.changes_since(0) is None, "there may have been changes before the state was deleted"
        last = [store.advance_version(clients(1)) for _ in range(3)][-1]
        for version in (0, first - 1, last + 1, last + 10**9):
            assert store.changes_since(version) is None

    def test_unnamed_change_is_any_change(self, store: Store) -> None:
        version = store.advance_version()
        later = store.advance_version()
        assert store.changes_since(version) == (later, (ALL,))

    def test_the_last_thousand_changes_are_known(self, store: Store) -> None:
        first = store.advance_version()
        digests = clients(MOST_CHANGES + 1)
        number = MOST_CHANGES // 20
        second = store.advance_version(digests[:number])
        for start in range(number, MOST_CHANGES, number):
            store.advance_version(digests[start : start + number])
        assert store.changes_since(first) == (store.version(), tuple(digests[:MOST_CHANGES]))
        last = store.advance_version(digests[MOST_CHANGES:])
        assert store.changes_since(first) is None
        assert store.changes_since(second) == (last, tuple(digests[number:]))

    def test_the_log_is_bounded(self, store: Store) -> None:
        digests = clients(2 * MOST_CHANGES)
        starts = range(0, len(digests), MOST_CLIENTS)
        versions = [store.advance_version(digests[start : start + MOST_CLIENTS]) for start in starts]
        for index, version in enumerate(versions):
            after = tuple(digests[MOST_CLIENTS * (index + 1) :])
            assert store.changes_since(version) == ((versions[-1], after) if len(after) <= MOST_CHANGES else None)

    def test_many_clients_that_change_together_are_everything(self, store: Store) -> None:
        version = store.advance_version()
        later = store.advance_version(clients(MOST_CLIENTS))
        assert store.changes_since(version) == (later, tuple(clients(MOST_CLIENTS)))
        last = store.advance_version(clients(MOST_CLIENTS + 1))
        assert store.changes_since(later) == (last, (EVERYTHING,))

    def test_namespaces_have_versions_and_logs_of_their_own(self, store: Store) -> None:
        names = ["", "a", "A", "ä", "a b:{c}", "x" * 1000]
        limits = limits_of(store, RateLimit(KEY, 10, 60), version=store.version())
        first = {name: store.advance_version(clients(1), name) for name in names[1:]}
        assert store.version() == 0
        assert limits.try_acquire({KEY: 1}), "its version is that of the empty namespace"
        first[""] = store.advance_version()
        expected = {name: [Change.of_client(bytes([7, index] * 4))] for index, name in enumerate(names)}
        for name in names:
            store.advance_version(expected[name], name)
        for name in names:
            changes = store.changes_since(first[name], name)
            assert changes == (store.version(name), tuple(expected[name]))
        assert store.changes_since(first[""], "unknown") is None
        assert store.version("unknown") == 0

    def test_versions_and_changes_agree_while_threads_announce(self, store: Store) -> None:
        start = store.advance_version()
        digests = iter(clients(THREADS * EACH))

        def announce() -> list[tuple[int, Change]]:
            own = [next(digests) for _ in range(EACH)]
            return [(store.advance_version([change]), change) for change in own]

        has_ended = Event()
        with switching_every_microsecond(), ThreadPoolExecutor(1) as executor:
            follower = executor.submit(follow, store, start, has_ended)
            try:
                announced = [entry for entries in together(announce) for entry in entries]
            finally:
                has_ended.set()
            assert follower.result(TIMEOUT) == {change for _, change in announced}
        check_agreement(store, announced)


def clients(number: int) -> Sequence[Change]:
    """Changes of so many clients."""
    return [Change.of_client(b"client" + index.to_bytes(2)) for index in range(number)]


def check_agreement(store: Store, announced: Iterable[tuple[int, Change]]) -> None:
    """Check that the log has exactly these versions, each with one change."""
    ordered = sorted(announced, key=lambda entry: entry[0])
    assert all(earlier < later for (earlier, _), (later, _) in pairwise(ordered))
    for index, (version, _) in enumerate(ordered):
        after = tuple(change for _, change in ordered[index + 1 :])
        assert store.changes_since(version) == (ordered[-1][0], after)


def follow(store: Store, version: int, has_ended: Event) -> set[Change]:
    """Read changes until there are no more; return all."""
    seen: set[Change] = set()
    is_last = False
    while not is_last:
        is_last = has_ended.is_set()
        changes = store.changes_since(version)
        assert changes is not None
        version = changes[0]
        seen.update(changes[1])
    return seen
