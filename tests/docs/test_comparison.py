"""The comparison: each feature that it claims has tests, which exist."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.docs.pages import DOCS, ROOT, rows

PAGE: Final = DOCS / "comparison.md"
TESTS: Final = rows(PAGE, "Tests")
_ROW: Final = re.compile(r"^\| (?P<feature>[a-z][^|]*?) \| (?P<own>[^|]*?) \|(?=.*\|.*\|)", re.MULTILINE)
_WITHOUT_TEST: Final = {"purpose", "feature"}


def test_each_feature_of_the_tables_has_a_test() -> None:
    tables = PAGE.read_text().partition("\n## ")[0]
    features = {match["feature"] for match in _ROW.finditer(tables)} - _WITHOUT_TEST
    assert len(features) > 15
    assert features == {feature for names, _ in TESTS for feature in names.split("; ")}


@pytest.mark.parametrize("row", TESTS, ids=lambda row: row[0])
def test_the_tests_of_a_feature_exist(row: list[str]) -> None:
    paths = re.findall(r"`([^`]+)`", row[1])
    assert paths
    for path in paths:
        assert (ROOT / path).exists(), f"there is no {path}: name the tests of the feature"
