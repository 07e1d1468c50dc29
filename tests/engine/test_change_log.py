"""Changes of the configuration as they are announced and stored, and what a log knows."""

from __future__ import annotations

import pytest

from limits_app.engine.change_log import (
    ACCESS,
    ALL,
    COOLING,
    ENTRY,
    EVERYTHING,
    GENERAL,
    MOST_CHANGES,
    MOST_CLIENTS,
    ROWS,
    Change,
    ChangeLog,
    announced,
)

ONE, TWO, THREE = (Change.of_client(bytes([index]) * 8) for index in (1, 2, 255))


@pytest.fixture
def now() -> list[int]:
    """The least version, which a test changes."""
    return [1000]


@pytest.mark.parametrize("change", [ACCESS, ALL, GENERAL, ROWS, EVERYTHING, ONE, THREE])
def test_a_change_is_stored_in_8_bytes(change: Change) -> None:
    assert len(change.encode()) == 8
    assert Change.decode(change.encode()) == change


@pytest.mark.parametrize(
    ("encoded", "change"),
    [
        (bytes(8), ALL),
        (bytes(7) + b"\1", ROWS),
        (bytes(7) + b"\2", EVERYTHING),
        (bytes(7) + b"\3", ACCESS),
        (bytes(7) + b"\4", GENERAL),
        (bytes(7) + b"\5", COOLING),
        (bytes(7) + b"\6", ALL),
        (bytes(7) + b"\xff", ALL),
    ],
)
def test_a_kind_that_is_unknown_is_any_change(encoded: bytes, change: Change) -> None:
    assert Change.decode(encoded) == change
    assert Change.decode(Change.of_client(encoded).encode()) == change


@pytest.mark.parametrize("digest", [b"", b"1234567", b"123456789"])
def test_a_digest_of_another_length_is_invalid(digest: bytes) -> None:
    with pytest.raises(ValueError, match=f"must have 8 bytes; got {len(digest)}"):
        Change.of_client(digest)


def test_changes_are_announced_once_and_clients_stay_known() -> None:
    assert announced([ONE, TWO, ONE]) == (ONE, TWO)
    assert announced([ONE, ALL, ROWS, TWO, ACCESS, ONE]) == (ONE, TWO, ALL)
    assert announced([ALL, ROWS]) == (ALL,)
    assert announced([ONE, ROWS, ONE, ACCESS]) == (ONE, ROWS, ACCESS)
    assert announced([ACCESS, ONE, GENERAL, ONE, COOLING]) == (ONE, GENERAL)
    assert announced([ONE, COOLING, ACCESS]) == (ONE, COOLING, ACCESS)
    assert announced([ROWS, GENERAL, ONE]) == announced([GENERAL, ALL, ONE]) == (ONE, ALL)
    clients = [Change.of_client(b"\1" + index.to_bytes(7)) for index in range(MOST_CLIENTS + 1)]
    assert announced(clients[1:]) == tuple(clients[1:])
    assert announced([ROWS, *clients[1:]]) == (ROWS, *clients[1:])
    assert announced([*clients, ONE, ALL, EVERYTHING, ROWS]) == (EVERYTHING,)
    with pytest.raises(ValueError, match="at least one change; got none: pass ALL"):
        announced([])


@pytest.mark.parametrize("others", [[], [ROWS], [ALL], [ROWS, ACCESS]])
def test_more_clients_than_are_announced_may_have_any_rows(others: list[Change]) -> None:
    clients = [Change.of_client(b"\1" + index.to_bytes(7)) for index in range(MOST_CLIENTS + 1)]
    assert announced([*clients, *others]) == announced([*others, *clients]) == (EVERYTHING,)


def test_the_version_is_the_time_or_one_more(now: list[int]) -> None:
    log = ChangeLog(2000)
    versions = []
    for now[0] in (1000, 1999, 2001, 5000, 5000, 4000):
        log = log.advanced([ONE], least=now[0])
        versions.append(log.version)
    assert versions == [2001, 2002, 2003, 5000, 5001, 5002]


def test_a_new_log_has_the_changes_since_its_first_version(now: list[int]) -> None:
    log = ChangeLog(999).advanced([ONE, TWO], least=now[0]).advanced([THREE], least=now[0])
    assert log.since(999) == (1001, (ONE, TWO, THREE))
    assert log.since(1000) == (1001, (THREE,))
    assert log.since(1001) == (1001, ())


def test_a_store_without_a_version_may_have_lost_changes(now: list[int]) -> None:
    assert ChangeLog().since(0) == (0, ())
    log = ChangeLog().advanced([ONE], least=now[0])
    assert log.since(0) is None
    assert log.advanced([TWO], least=now[0]).since(1000) == (1001, (TWO,))


def test_a_version_that_another_program_has_raised_is_a_gap(now: list[int]) -> None:
    log = ChangeLog(1).advanced([ONE], least=now[0])._replace(version=1500)
    assert log.since(1) is log.since(1000) is None
    assert log.since(1500) == (1500, ())
    log = log.advanced([TWO], least=now[0]).advanced([THREE], least=now[0])
    assert log.since(1) is log.since(1000) is None
    assert log.since(1500) == (1502, (TWO, THREE))


def test_versions_of_another_life_are_unknown(now: list[int]) -> None:
    backup = ChangeLog(1).advanced([ONE], least=now[0])
    lost = [backup]
    for _ in range(3):
        lost.append(lost[-1].advanced([TWO], least=now[0]))
    assert [backup.since(log.version) for log in lost] == [(1000, ()), None, None, None]
    now[0] = 2000
    later = backup.advanced([THREE], least=now[0])
    assert [later.since(log.version) for log in lost] == [(2000, (THREE,)), None, None, None]


@pytest.mark.parametrize("cut", [1, 8, 15])
def test_a_damaged_log_has_no_changes(now: list[int], cut: int) -> None:
    log = ChangeLog(1).advanced([ONE], least=now[0]).advanced([TWO], least=now[0])
    for damaged in (log.log[:-cut], log.log[cut:][: ENTRY.size - cut], b"x" * 40):
        broken = log._replace(log=damaged)
        assert broken.since(1000) is None
        assert broken.advanced([THREE], least=now[0]).since(log.version) == (log.version + 1, (THREE,))


def test_a_log_keeps_a_thousand_changes(now: list[int]) -> None:
    log, logs = ChangeLog(1), []
    all_changes = [Change.of_client(b"\1" + index.to_bytes(7)) for index in range(MOST_CHANGES + 500)]
    for change in all_changes:
        log = log.advanced([change], least=now[0])
        logs.append(log)
    assert len(log.log) == (MOST_CHANGES + 1) * ENTRY.size
    for back in (0, 1, 2, MOST_CHANGES - 1, MOST_CHANGES):
        latest, after = log.since(logs[-1 - back].version) or (0, ())
        assert latest == log.version
        assert after == tuple(all_changes[len(all_changes) - back :])
    assert log.since(logs[-MOST_CHANGES - 2].version) is None


def test_an_announcement_that_is_partly_dropped_is_unknown_to_those_before_it(now: list[int]) -> None:
    first = ChangeLog(1).advanced([ONE], least=now[0])
    second = first.advanced([TWO, THREE], least=now[0])
    log = second
    for index in range(MOST_CHANGES - 1):
        log = log.advanced([Change.of_client(b"\1" + index.to_bytes(7))], least=now[0])
    assert log.since(first.version) is None
    assert len((log.since(second.version) or (0, ()))[1]) == MOST_CHANGES - 1
