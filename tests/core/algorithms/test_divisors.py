"""Divisors, among which the tick of a rate is chosen."""

from __future__ import annotations

import pytest

from limits_app.core.algorithms.units import _divisors


@pytest.mark.parametrize("number", [1, 2, 9, 49, 50, 97, 98, 360, 1009**2, 2**6 * 5**6 * 7**2])
def test_every_divisor_is_found_in_rising_order(number: int) -> None:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    assert list(_divisors(number)) == sorted({*small, *(number // divisor for divisor in small)})
