"""What the fuzzer that is guided by coverage begins with."""

from __future__ import annotations

import pytest

from tests.fuzz.guided import targets

pytestmark = pytest.mark.release


def test_tests_of_this_folder_run_on_any_bytes() -> None:
    found = targets()
    assert "test_a_limits_file_is_read_or_refused_by_line" in found
    for run in found.values():
        run(b"")
        run(bytes(range(256)) * 4)
