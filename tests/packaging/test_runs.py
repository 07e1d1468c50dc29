"""What `.ci/run` prints last, and which tests are left to which run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.products import mark

PASSED = 'echo "===== 20 passed, 4 warnings in 2.50s ====="'
FAILED = (
    'echo FAILED tests/a.py::b - no; echo "= 3 failed, 120 passed, 9 deselected, 1 error in 12.50s (0:00:12) ="; exit 1'
)
BROKEN = "echo no module named pytest; exit 2"
FINE = "echo fine"


def last_lines(tmp_path: Path, test: str, products: str, check: str) -> tuple[int, list[str]]:
    """The exit code of `.ci/run` where make does this, and what it prints after the runs."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    targets = {"test": test, "test-products": products, "check": f"echo the end of the check; {check}"}
    (tmp_path / "Makefile").write_text("".join(f"{name}:\n\t@{line}\n" for name, line in targets.items()))
    done = subprocess.run([tmp_path / ".ci" / "run"], check=False, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout.partition("the end of the check\n")[2].splitlines()


def test_the_last_line_counts_both_runs(tmp_path: Path) -> None:
    code, lines = last_lines(tmp_path, PASSED, PASSED, FINE)
    assert (code, lines[-1]) == (0, "============ 40 passed in 5.00s ============")


@pytest.mark.parametrize("runs", [(FAILED, PASSED), (PASSED, FAILED)])
def test_failures_of_both_runs_are_in_the_last_lines(tmp_path: Path, runs: tuple[str, str]) -> None:
    code, lines = last_lines(tmp_path, *runs, FINE)
    assert code == 1
    assert "FAILED tests/a.py::b - no" in lines
    assert f"failed: make {'test' if runs[0] is FAILED else 'test-products'}" in lines
    assert lines[-1] == "============ 3 failed, 140 passed, 1 error in 15.00s ============"


def test_a_run_without_tests_is_an_error(tmp_path: Path) -> None:
    code, lines = last_lines(tmp_path, PASSED, BROKEN, FINE)
    assert (code, lines[-1]) == (1, "============ 20 passed, 1 error in 2.50s ============")
    assert "failed: make test-products" in lines


def test_a_failed_check_is_named(tmp_path: Path) -> None:
    code, lines = last_lines(tmp_path, PASSED, PASSED, "exit 1")
    assert (code, lines[-2]) == (1, "failed: make check")


class Item:
    """A collected test."""

    def __init__(self, name: str, *fixtures: str) -> None:
        self.name, self.fixturenames = name, fixtures
        self.marks: set[str] = set()

    def get_closest_marker(self, name: str) -> object:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.add(name)


@pytest.mark.parametrize(
    ("item", "marks"),
    [
        (Item("test_a"), set()),
        (Item("test_a[memory]", "store"), set()),
        (Item("test_redis_is_named"), set()),
        (Item("test_a[redis-6.2-x]", "redis_binary"), {"product", "server"}),
        (Item("test_a[newer-redis]", "redis_binary"), {"server"}),
        (Item("test_a[gcra-postgres]"), {"server"}),
        (Item("test_a[postgres_at_read_committed]"), {"server"}),
        (Item("test_a[mariadb_server]"), {"product", "server"}),
        (Item("test_a", "store", "redis"), {"server"}),
        (Item("test_a", "cluster", "redis"), {"product", "server"}),
    ],
    ids=lambda value: f"{value.name} {value.fixturenames}" if isinstance(value, Item) else "",
)
def test_products_of_a_test_decide_its_run(item: Item, marks: set[str]) -> None:
    mark(item)  # type: ignore[arg-type]  # it has what is read
    assert item.marks == marks
