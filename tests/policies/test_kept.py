"""Values that are kept by key, and dropped by the identifiers that they were read from."""

from __future__ import annotations

from limits_app.policies.kept import Aged, Kept

ACME, ANN, BOB = (bytes([number]) * 8 for number in range(3))


def kept(most: int = 10) -> Kept[str, int]:
    """Two clients of one tenant, and one of no tenant."""
    values: Kept[str, int] = Kept()
    for number, (key, digests) in enumerate({"ann": {ANN, ACME}, "bob": {BOB, ACME}, "eve": set[bytes]()}.items()):
        values.add(key, Aged(number, digests=tuple(digests)), most=most)
    return values


def test_values_of_an_identifier_are_dropped_and_no_others() -> None:
    values = kept()
    values.drop({ANN})
    assert set(values.values) == {"bob", "eve"}
    values.drop({ACME, ANN, b"unknown!"})
    assert set(values.values) == {"eve"}


def test_a_replaced_value_is_dropped_by_its_own_identifiers() -> None:
    values = kept()
    values.add("ann", Aged(7, digests=(BOB,)), most=10)
    values.drop({ANN, ACME})
    assert {key: aged.value for key, aged in values.values.items()} == {"eve": 2, "ann": 7}
    values.drop({BOB})
    assert set(values.values) == {"eve"}


def test_unused_values_make_room_and_are_not_found_by_their_identifiers() -> None:
    values = kept(most=2)
    assert set(values.values) == {"bob", "eve"}
    values.drop({ANN})
    assert values.get("bob") is not None
    values.add("new", Aged(9, digests=(ANN,)), most=2)
    assert set(values.values) == {"bob", "new"}, "bob was used, and eve was not"
    values.clear()
    values.drop({ANN, BOB, ACME})
    assert len(values) == 0
