"""Which identifiers have rows: what is read, what is added, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import ValidationError
from django.db.models import AutoField, BigAutoField, SmallAutoField, UUIDField

from limits_app.models.changes import identifier_digest
from limits_app.models.users import user_identifier, user_key
from limits_app.policies import identifiers as identifiers_module
from limits_app.policies.identifiers import READ_AGAIN, KnownIdentifiers
from tests.forking import exit_code_of_child
from tests.replacing import at_next_call

Rows = list[tuple[int, str]]


class Table:
    """Rows by primary key, read page by page; `reads` are the keys above which it was read.

    `when_read` is called with each page before it is returned.
    """

    def __init__(self, *identifiers: str) -> None:
        self.rows: dict[int, str] = {}
        self.reads: list[Any] = []
        self.when_read: Callable[[Rows, int], object] = lambda _page, _most: None
        self.add(*identifiers)

    def add(self, *identifiers: str, key: int | None = None) -> None:
        """Insert rows, after the last one or from a key on."""
        first = max(self.rows, default=0) + 1 if key is None else key
        self.rows |= {first + number: identifier for number, identifier in enumerate(identifiers)}

    def read(self, above: Any, most: int) -> Sequence[tuple[int, str]]:
        """A page."""
        self.reads.append(above)
        page = [(key, self.rows[key]) for key in sorted(self.rows) if key > (above or 0)][:most]
        self.when_read(page, most)
        return page


def known(table: Table, members: Table | None = None, *, page_size: int = 10) -> KnownIdentifiers:
    """Identifiers of which nothing was read yet."""
    return KnownIdentifiers(table.read, (members or Table()).read, page_size=page_size)


def complete(identifiers: KnownIdentifiers) -> KnownIdentifiers:
    """The same, with everything read."""
    while identifiers.read_page():
        pass
    return identifiers


def has(identifiers: KnownIdentifiers, *names: str) -> list[bool]:
    """Whether identifiers may have rows."""
    return [identifiers.may_have_rows(name) for name in names]


ADDRESS, CLIENT_NETWORK = "ip:2001:db8::", "ip:2001:db8::/64"
UUID_KEY = "12345678-1234-5678-1234-567812345678"
SPELLINGS = {
    CLIENT_NETWORK: [
        "ip:2001:DB8::/64",
        "ip:2001:db8:0::/64",
        "ip:2001:db8::1",
        "ip:2001:DB8::0:1/128",
        f"{ADDRESS}/80",
    ],
    "user:5": ["user:05", "user: 5", "user:+5", "user:5 "],
}


@pytest.mark.parametrize(("name", "spelling"), [(name, other) for name in SPELLINGS for other in SPELLINGS[name]])
def test_client_is_known_in_each_spelling(name: str, spelling: str) -> None:
    assert has(complete(known(Table(name))), spelling, name) == [True, True]
    assert has(complete(known(Table("key:1"))), spelling, name) == [False, False]


NumberUsersBy = Callable[[Any], None]


@pytest.fixture
def number_users_by(monkeypatch: pytest.MonkeyPatch) -> NumberUsersBy:
    """Have a model of users with another primary key."""

    def number_by(field: Any) -> None:
        model = SimpleNamespace(_meta=SimpleNamespace(pk=field))
        monkeypatch.setattr("limits_app.models.users.user_model", lambda: model)

    return number_by


@pytest.mark.parametrize("spelling", [UUID_KEY.replace("-", ""), f"urn:uuid:{UUID_KEY}", f"{{{UUID_KEY}}}"])
def test_user_with_a_uuid_is_known_in_each_spelling(spelling: str, number_users_by: NumberUsersBy) -> None:
    number_users_by(UUIDField())
    assert user_identifier(UUID_KEY.upper()) == user_identifier(UUID(UUID_KEY)) == f"user:{UUID_KEY}"
    assert has(complete(known(Table(f"user:{UUID_KEY}"))), f"user:{spelling}", "user:5") == [True, False]


@pytest.mark.parametrize(
    "text", ["5", "05", "+5", "5 ", "x", "", "-1", "²", "٣", "999999999", str(2**31), str(2**63 - 1), str(2**63), "5.0"]
)
@pytest.mark.parametrize("field", [AutoField(), BigAutoField(), SmallAutoField(), UUIDField()])
def test_key_of_a_user_is_that_of_the_field(text: str, field: Any, number_users_by: NumberUsersBy) -> None:
    number_users_by(field)
    try:
        key = field.clean(text, None)
    except ValidationError:
        key = None
    assert user_key(f"user:{text}") == key
    assert user_key(f"key:{text}") is None


def test_all_may_have_rows_until_they_were_read() -> None:
    identifiers = known(Table(*[f"key:{number}" for number in range(35)]))
    pages = 0
    while identifiers.read_page():
        pages += 1
        assert not identifiers.is_complete
        assert has(identifiers, "key:1", "user:1") == [True, True]
    assert pages == 4
    assert has(identifiers, *[f"key:{number}" for number in range(35)]) == [True] * 35
    assert has(identifiers, *[f"ip:{number}" for number in range(35)]) == [False] * 35


@pytest.mark.parametrize("number", [0, 1, 9, 10, 11, 20])
def test_pages_end_with_the_last_row(number: int) -> None:
    table, members = Table(*[f"key:{key}" for key in range(number)]), Table("user:7")
    identifiers = complete(known(table, members))
    assert len(identifiers) == number + 1
    assert has(identifiers, "user:7", "user:8", "key:x") == [True, False, False]


def test_users_may_have_rows_until_members_of_groups_were_read() -> None:
    identifiers = known(Table("key:1"), Table("user:1", "user:2"), page_size=2)
    identifiers.read_page()
    assert has(identifiers, "user:9", "key:9", "key:1") == [True, False, True]
    complete(identifiers)
    assert has(identifiers, "user:9", "user:1", "user:2") == [False, True, True]


def test_added_identifiers_are_known_while_rows_are_read() -> None:
    table = Table(*[f"key:{number}" for number in range(30)])
    identifiers = known(table)
    identifiers.read_page()
    identifiers.add([identifier_digest("key:new")])
    complete(identifiers)
    assert has(identifiers, "key:new", "key:29", "key:other") == [True, True, False]


def test_many_added_identifiers_are_merged_and_known() -> None:
    identifiers = complete(known(Table(*[f"key:{number}" for number in range(5)])))
    names = [f"tenant:{number}" for number in range(20_000)]
    for first in range(0, len(names), 5_000):
        identifiers.add(map(identifier_digest, names[first : first + 5_000]))
    assert all(has(identifiers, *names, "key:0", "key:4"))
    assert sum(has(identifiers, *[f"ip:{number}" for number in range(10_000)])) < 50


def test_rows_above_a_key_are_added_whatever_was_read() -> None:
    table = Table("key:1", "key:2")
    identifiers = complete(known(table))
    table.add(*[f"new:{number}" for number in range(25)])
    identifiers.read_latest()
    assert all(has(identifiers, "new:0", "new:24"))
    table.add("late:1", key=2 * READ_AGAIN)
    table.add("late:0", key=READ_AGAIN + 50)
    identifiers.read_latest()
    table.add("early:0", key=READ_AGAIN - 1)
    table.add("late:2", key=READ_AGAIN + 1)
    identifiers.read_latest()
    assert has(identifiers, "late:0", "late:1", "late:2", "early:0") == [True, True, True, False]


def test_latest_rows_are_read_after_the_first_ones() -> None:
    table = Table(*[f"key:{number}" for number in range(25)])
    identifiers = known(table)
    identifiers.read_page()
    identifiers.read_latest()
    assert table.reads == [None]
    complete(identifiers)
    assert table.reads == [None, 10, 20, 25 - READ_AGAIN, 10, 20]


@pytest.mark.parametrize("number", [0, 3, 10, 15])
def test_rows_added_while_the_last_page_is_read_are_known(number: int) -> None:
    table, members = Table(*[f"key:{one}" for one in range(number)]), Table("user:1")
    identifiers = known(table, members)

    def add_late(kind: str, of: Table, page: Rows, most: int) -> None:
        if len(page) < most and f"{kind}:late" not in of.rows.values():
            of.add(f"{kind}:late", f"{kind}:later")
            identifiers.refresh()

    table.when_read, members.when_read = partial(add_late, "key", table), partial(add_late, "user", members)
    complete(identifiers)
    assert has(identifiers, "key:late", "key:later", "user:late", "user:later", "key:x") == [True] * 4 + [False]


def test_latest_rows_that_cannot_be_read_now_are_read_by_pages() -> None:
    table = Table(*[f"key:{number}" for number in range(3 * READ_AGAIN)])
    identifiers = complete(known(table, page_size=READ_AGAIN))
    table.add("late:0")
    table.reads.clear()
    identifiers.read_latest_later()
    assert not identifiers.is_complete
    assert has(identifiers, "late:0", "key:x") == [True, True]
    assert has(complete(identifiers), "late:0", "key:0", "key:x") == [True, True, False]
    assert table.reads == [2 * READ_AGAIN, 3 * READ_AGAIN]


@pytest.mark.parametrize("later", [False, True])
def test_all_rows_are_read_again_where_the_latest_ones_are_gone(later: bool) -> None:
    table = Table(*[f"key:{number}" for number in range(2 * READ_AGAIN)])
    identifiers = complete(known(table, page_size=READ_AGAIN))
    table.rows = {}
    table.add("low:1", "low:2")
    if later:
        identifiers.read_latest_later()
    else:
        identifiers.read_latest()
    assert has(complete(identifiers), "low:1", "low:2", "key:1", "key:x") == [True, True, False, False]


def test_all_rows_are_read_again_where_keys_are_not_numbers() -> None:
    class Texts(Table):
        """Rows whose keys say nothing about their order."""

        def read(self, above: Any, most: int) -> Any:
            self.reads.append(above)
            return [(str(key), name) for key, name in self.rows.items() if str(key) > (above or "")][:most]

    table = Texts("key:1", "key:2")
    identifiers = complete(known(table))
    table.add("key:0", key=0)
    identifiers.read_latest()
    assert not identifiers.is_complete
    assert has(complete(identifiers), "key:0", "key:1", "key:2", "key:x") == [True, True, True, False]


def test_latest_rows_are_read_later_before_any_was_read() -> None:
    table = Table("key:1")
    identifiers = known(table)
    identifiers.read_latest_later()
    assert has(complete(identifiers), "key:1", "key:x") == [True, False]
    assert table.reads[0] is None


def test_rows_above_a_deleted_one_are_the_latest() -> None:
    table = Table(*[f"key:{number}" for number in range(25)])
    identifiers = complete(known(table))
    del table.rows[25]
    table.add("new:1", key=26)
    identifiers.read_latest()
    assert identifiers.is_complete
    assert has(identifiers, "new:1", "key:24", "key:x") == [True, True, False]


def test_page_that_was_read_before_a_restart_is_dropped() -> None:
    reading, restarted = Event(), Event()

    class Slow(Table):
        def read(self, above: Any, most: int) -> Rows:
            page = [*super().read(above, most)]
            reading.set()
            restarted.wait(10)
            return page

    table = Slow("key:1")
    identifiers = known(table)
    thread = Thread(target=identifiers.read_page)
    thread.start()
    assert reading.wait(10)
    table.add("key:2")
    identifiers.restart()
    restarted.set()
    thread.join()
    assert not identifiers.is_complete
    assert has(complete(identifiers), "key:2") == [True]


def test_look_up_sees_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    identifiers = complete(known(Table("key:1")))

    def restarted(_usual: object, name: str) -> tuple[str, ...]:
        identifiers.restart()  # as another thread does
        return (name,)

    at_next_call(monkeypatch, identifiers_module, "identifiers_of_client", restarted)
    assert has(identifiers, "key:1") == [True]


def test_reading_may_call_code_that_adds() -> None:
    identifiers = complete(known(Table("key:1")))

    def digests() -> Iterator[bytes]:
        identifiers.add([identifier_digest("key:2")])  # as a finalizer does that runs while this thread adds
        yield identifier_digest("key:3")

    identifiers.add(digests())
    assert has(identifiers, "key:2", "key:3", "key:4") == [True, True, False]


def test_restart_drops_the_latest_rows_that_were_read_before() -> None:
    table = Table(*[f"key:{number}" for number in range(25)])
    identifiers = complete(known(table))
    silent, table.when_read = table.when_read, lambda _page, _most: identifiers.restart()
    identifiers.read_latest()
    table.when_read = silent
    assert all(has(complete(identifiers), "key:0", "key:24"))


def test_patterns_are_those_of_all_rows() -> None:
    table = Table("key:1", "key:*", "ip:10.0.0.0/8", "ip:10.0.0.1", "ip:2001:db8::/64")
    identifiers = complete(known(table, page_size=2))
    assert identifiers.patterns.identifiers == {"key:*", "ip:10.0.0.0/8"}
    table.add("user:eu-*")
    identifiers.read_latest()
    assert "user:eu-*" in identifiers.patterns.identifiers
    identifiers.restart()
    assert not identifiers.patterns.identifiers


@pytest.mark.release
def test_a_row_takes_two_bytes() -> None:
    identifiers = known(Table())
    names = (f"user:{number}" for number in range(600_000))
    identifiers.add(map(identifier_digest, names))
    assert len(identifiers) >= 599_900
    assert identifiers.size <= 2.5 * len(identifiers)


def test_child_process_keeps_read_identifiers_and_can_add() -> None:
    identifiers = complete(known(Table("key:1")))

    def child() -> int:
        identifiers.add([identifier_digest("key:2")])
        return 0 if has(identifiers, "key:1", "key:2", "key:3") == [True, True, False] else 1

    adding, forked = Event(), Event()

    def slow_digests() -> Iterator[bytes]:
        adding.set()
        forked.wait(10)
        yield from ()

    thread = Thread(target=identifiers.add, args=[slow_digests()])
    thread.start()
    assert adding.wait(10)
    assert exit_code_of_child(child) == 0  # while another thread adds
    forked.set()
    thread.join()
    assert has(identifiers, "key:2") == [False]
