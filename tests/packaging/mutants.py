"""`python -m tests.packaging.mutants NAME ...`: changes modules in many ways, one at a time, and lists what survives.

A name is that of a module, such as `limits_app.policies.dropped`, or of one of its functions with a `*` after it. Each
module has its own tests, since a run of all tests takes longer than its mutants. Without names, all are changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ENGINE: Final = ("tests/engine", "tests/stores/test_conformance.py::TestMemoryStore")
HELD: Final = (
    "tests/acquiring/test_acquisition.py",
    "tests/acquiring/test_extension.py",
    "tests/acquiring/test_limit_pool.py",
    "tests/services/test_extending.py",
    "tests/services/test_idempotency.py",
    "tests/services/test_tokens.py",
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
    "limits_app.engine.engine": ENGINE,
    "limits_app.engine.holders": ("tests/engine", "tests/services/test_tokens.py"),
    "limits_app.engine.plan": ("tests/engine", *HELD),
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
        "tests/services/test_shadows.py",
        "tests/services/test_totals.py",
    ),
    "limits_app.services.candidates": ("tests/services/test_candidates.py",),
    "limits_app.services.decisions": ("tests/api/test_decisions.py",),
    "limits_app.services.held_charges": ("tests/services/test_tokens.py", "tests/api/test_decisions.py"),
    "limits_app.services.tokens": ("tests/services/test_tokens.py", "tests/api/test_decisions.py"),
    "limits_app.stores.slices": ("tests/stores/test_slice_simulation.py", "tests/stores/test_slices.py"),
}
"""The tests of each module."""
CHILDREN: Final = os.environ.get("LIMITS_MUTANTS_CHILDREN", "2")


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
    # They read the command line, or the configuration, when they are imported.
    from mutmut import __main__ as mutmut
    from mutmut.configuration import config
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    shutil.rmtree("mutants", ignore_errors=True)
    path = Path(module.replace(".", "/") + ".py")
    config().only_mutate = [str(path)]
    config().pytest_add_cli_args_test_selection = list(TESTS[module])
    pattern = f"{name}.*" if name == module else name
    mutmut.run(["--max-children", CHILDREN, pattern], standalone_mode=False)
    mutants = SourceFileMutationData(path=path)
    mutants.load()
    status = {mutant: status_by_exit_code[code] for mutant, code in mutants.exit_code_by_key.items()}
    left = {mutant: word for mutant, word in status.items() if word not in {"killed", "timeout", "not checked"}}
    checked = sum(word != "not checked" for word in status.values())
    lines = [f"# {mutant}: {word}\n{get_diff_for_mutant(mutant, path=path)}" for mutant, word in left.items()]
    lines += [f"{module}: {checked} mutants, {checked - len(left)} killed, {len(left)} left"]
    sys.stdout.write("\n".join([*lines, ""]))
    return bool(left)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(change(*arguments[1:]) if arguments[:1] == ["--one"] else main(arguments))
