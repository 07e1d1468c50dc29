"""`python -m tests.packaging.mutants NAME ...`: changes modules in many ways, one at a time, and lists what survives.

A name is that of a module, such as `limits_app.policies.dropped`, or of one of its functions with a `*` after it. Each
module has its own tests, since a run of all tests takes longer than its mutants. Without names, all are changed.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

import pytest
from _pytest.runner import pytest_runtest_teardown, runtestprotocol
from asgiref.sync import SyncToAsync
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.utils.format_utils import mangled_name_from_mutant_name

ENGINE: Final = ("tests/engine", "tests/stores/test_conformance.py::TestMemoryStore")
RECORDS: Final = (
    "tests/engine/test_charging.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_money.py",
    "tests/engine/test_plan.py",
    "tests/engine/test_quotas_and_soft_limits.py",
    "tests/engine/test_token_leases.py",
    "tests/stores/test_conformance.py::TestMemoryStore",
)
HELD: Final = (
    "tests/acquiring/test_acquisition.py",
    "tests/acquiring/test_extension.py",
    "tests/acquiring/test_limit_pool.py",
    "tests/acquiring/test_priorities.py",
    "tests/integrations/test_overruled.py",
    "tests/services/test_extending.py",
    "tests/services/test_idempotency.py",
    "tests/services/test_outdated_rejections.py",
    "tests/services/test_priorities.py",
    "tests/services/test_shadows.py",
    "tests/services/test_tokens.py",
    "tests/services/test_totals.py",
)
TESTS: Final = {
    "limits_app.acquiring.acquisition": HELD,
    "limits_app.acquiring.extending": HELD,
    "limits_app.acquiring.held_part": HELD,
    "limits_app.acquiring.held_parts": HELD,
    "limits_app.acquiring.timed_block": (
        "tests/integrations/test_rule_responses.py",
        "tests/integrations/test_rules.py",
    ),
    **{
        f"limits_app.engine.algorithms.{name}": ENGINE
        for name in (
            "buckets",
            "calendar",
            "counted",
            "keeping",
            "permits",
            "quota",
            "rule",
            "units",
            "window_log",
            "windows",
        )
    },
    "limits_app.engine.charging": ("tests/engine", "tests/services/test_charging.py"),
    "limits_app.engine.costs": ("tests/engine", "tests/usage/test_costs.py", "tests/usage/test_request_costs.py"),
    "limits_app.engine.engine": RECORDS,
    "limits_app.engine.holders": ("tests/engine", "tests/services/test_tokens.py"),
    "limits_app.engine.plan": (
        *RECORDS,
        "tests/acquiring/test_acquisition.py",
        "tests/acquiring/test_extension.py",
        "tests/services/test_money.py",
        "tests/services/test_totals.py",
    ),
    "limits_app.engine.prices": ("tests/engine", "tests/policies/test_prices.py"),
    "limits_app.engine.priorities": ("tests/engine", "tests/acquiring/test_priorities.py"),
    "limits_app.engine.sealing": ("tests/engine", "tests/services/test_tokens.py", "tests/api/test_decisions.py"),
    "limits_app.engine.token_leases": ("tests/engine", "tests/services/test_tokens.py"),
    "limits_app.policies.chain": (
        "tests/policies/test_agreement.py",
        "tests/policies/test_plans_of_groups.py",
        "tests/policies/test_pools.py",
        "tests/policies/test_precedence.py",
        "tests/services/test_candidates.py",
        "tests/services/test_cascades.py",
    ),
    "limits_app.policies.combined": (
        "tests/integrations/test_rule_combinations.py",
        "tests/services/test_combinations.py",
    ),
    "limits_app.policies.dropped": (
        "tests/admin/pages/test_limit.py",
        "tests/policies/test_agreement.py",
        "tests/policies/test_dropped.py",
    ),
    "limits_app.policies.precedence": ("tests/policies/test_agreement.py", "tests/policies/test_precedence.py"),
    "limits_app.policies.priced_limits": ("tests/policies/test_prices.py", "tests/services/test_money.py"),
    "limits_app.policies.prices": ("tests/policies/test_prices.py", "tests/services/test_money.py"),
    "limits_app.policies.resolved_set": (
        "tests/policies/test_alike.py",
        "tests/policies/test_following.py",
        "tests/policies/test_pools.py",
        "tests/policies/test_prices.py",
        "tests/services/test_candidates.py",
        "tests/services/test_cascades.py",
        "tests/services/test_combinations.py",
        "tests/services/test_dates.py",
        "tests/services/test_shadows.py",
        "tests/services/test_switches.py",
        "tests/services/test_totals.py",
    ),
    "limits_app.services.candidates": ("tests/services/test_candidates.py",),
    "limits_app.services.decisions": ("tests/api/test_decisions.py",),
    "limits_app.services.held_charges": ("tests/services/test_tokens.py", "tests/api/test_decisions.py"),
    "limits_app.services.tokens": ("tests/services/test_tokens.py", "tests/api/test_decisions.py"),
    "limits_app.stores.slices": ("tests/stores/test_slice_simulation.py", "tests/stores/test_slices.py"),
}
"""The tests of each module."""
CHILDREN: Final = 2
"""How many mutants are tested at the same time."""
SURVIVED: Final = "survived"
NOTICED: Final = "noticed"
NO_TESTS: Final = "no tests"
_PASSED: Final = 100
"""The exit code of a child whose tests have passed; others are the number of the test that failed."""
_MOST_NUMBER: Final = 99


def main(names: list[str]) -> int:
    """Change the modules of the names, each in a process of its own; returns how many of them had survivors."""
    failed = 0
    for name in names or TESTS:
        module = module_of(name)
        command = [sys.executable, "-m", "tests.packaging.mutants", "--one", module, name]
        failed += subprocess.run(command, check=False).returncode != 0
    return failed


def module_of(name: str) -> str:
    """The module that a name is that of, or of a function in."""
    for module in TESTS:
        if name == module or name.startswith(f"{module}."):
            return module
    raise SystemExit(f"{name} must be a module in tests/packaging/mutants.py, or one of its functions.")


def change(module: str, name: str) -> int:
    """Change one module, and print the changes that no test of it notices."""
    # It reads the command line when it is imported.
    from mutmut import __main__ as mutmut
    from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths

    path = Path(module.replace(".", "/") + ".py")
    config().only_mutate = [str(path)]
    shutil.rmtree("mutants", ignore_errors=True)
    copy_src_dir()
    copy_also_copy_files()
    setup_source_paths()
    mutmut.create_mutants(1)
    made = SourceFileMutationData(path=path)
    made.load()
    mutants = [mutant for mutant in made.exit_code_by_key if name == module or fnmatch(mutant, name)]
    changes = Changes(mutants)
    with change_cwd("mutants"):
        options = ["-q", "--rootdir=.", "--tb=native", "--assert=plain", "-p", "no:randomly", "-p", "no:xdist"]
        options += config().pytest_add_cli_args
        if code := pytest.main([*options, *TESTS[module]], plugins=[changes]):
            return int(code)
    left = {mutant: changes.words.get(mutant, NO_TESTS) for mutant in mutants}
    left = {mutant: word for mutant, word in left.items() if word in {SURVIVED, NO_TESTS}}
    lines = [f"# {mutant}: {word}\n{get_diff_for_mutant(mutant, path=path)}" for mutant, word in left.items()]
    lines += [f"{module}: {len(mutants)} mutants, {len(mutants) - len(left)} noticed, {len(left)} not noticed"]
    sys.stdout.write("\n".join([*lines, ""]))
    return bool(left)


class Changes:
    """A plugin of pytest that runs the tests once, and then for each mutant in a child of this process.

    A child runs the tests that called the changed function until one of them fails: first those that have noticed
    another change of it, then the quickest ones.
    """

    def __init__(self, mutants: list[str]) -> None:
        self._mutants = mutants
        self._seconds: dict[pytest.Item, float] = {}
        self._tests: dict[str, list[pytest.Item]] = defaultdict(list)
        """The tests that called a function."""
        self._running: dict[int, tuple[str, float]] = {}
        """The mutants by the process that tests it, and when that has to end."""
        self.words: dict[str, str] = {}
        """What became of each mutant."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests, and then those of each mutant."""
        self._run_unchanged(session)
        for number, mutant in enumerate(self._mutants):
            tests = self._tests[mangled_name_from_mutant_name(mutant)]
            while len(self._running) >= CHILDREN:
                self._wait()
            if tests:
                self._start(mutant, tests)
            if number % 50 == 49:
                sys.stderr.write(f"{number + 1} of {len(self._mutants)}\n")
        while self._running:
            self._wait()
        pytest_runtest_teardown(session.items[0], None)
        return True

    def _run_unchanged(self, session: pytest.Session) -> None:
        set_mutant_under_test("stats")
        called: set[str] = vars(state())["_stats"]
        for item, following in zip(session.items, [*session.items[1:], session.items[0]], strict=True):
            called.clear()
            start = perf_counter()
            if not passes(item, following):
                sys.stderr.write(f"{item.nodeid} is left out, since it fails without a change\n")
                continue
            self._seconds[item] = perf_counter() - start
            for function in called:
                self._tests[function].append(item)
        for tests in self._tests.values():
            tests.sort(key=self._seconds.__getitem__)
        set_mutant_under_test("")
        gc.freeze()

    def _start(self, mutant: str, tests: list[pytest.Item]) -> None:
        sys.stdout.flush()
        child = os.fork()
        if child:
            seconds = sum(self._seconds[item] for item in tests)
            self._running[child] = mutant, perf_counter() + 5 * seconds + 30
            return
        # The thread of the executor is in the parent only: a test that waits for it would never end.
        SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
        set_mutant_under_test(mutant)
        for number, (item, following) in enumerate(zip(tests, [*tests[1:], tests[0]], strict=True)):
            pytest_runtest_teardown(item, item)
            if not passes(item, following):
                os._exit(min(number, _MOST_NUMBER))
        os._exit(_PASSED)

    def _wait(self) -> None:
        """Wait until a child ends, or took too long."""
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in self._running:
            mutant, _ = self._running.pop(child)
            number = os.waitstatus_to_exitcode(status)
            self.words[mutant] = SURVIVED if number == _PASSED else NOTICED
            if number == _PASSED:
                sys.stderr.write(f"{mutant} survived\n")
            if 0 <= number < _MOST_NUMBER:
                tests = self._tests[mangled_name_from_mutant_name(mutant)]
                tests.insert(0, tests.pop(number))
            return
        for late in [child for child, (_, until) in self._running.items() if perf_counter() > until]:
            sys.stderr.write(f"{self._running[late][0]} took too long\n")
            self._running[late] = self._running[late][0], float("inf")
            os.kill(late, signal.SIGKILL)
        sleep(0.01)


def passes(item: pytest.Item, following: pytest.Item) -> bool:
    """Run a test, and return whether it passes; what `following` needs too is kept."""
    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(change(*arguments[1:]) if arguments[:1] == ["--one"] else main(arguments))
