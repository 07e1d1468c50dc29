"""Options that cannot be are refused before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from limits_app.engine.limits import CallLimit
from limits_app.workers import ExecutionMode, Worker, modes
from tests.replacing import without_package
from tests.workers.people import Clerk, memory_set


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "threads"}, "mode 'threads' must be one of sync, thread, process, asyncio"),
        ({"max_workers": 0}, "max_workers must be None or a whole number, 1 or more, not 0"),
        ({"max_workers": True}, "max_workers must be"),
        ({"max_queued_tasks": 0}, "max_queued_tasks must be None or a whole number, 1 or more, not 0"),
        ({"max_queued_tasks": 1.5}, "max_queued_tasks must be"),
        ({"load_balancing": "fair"}, "load_balancing must be one of round_robin, random, least_loaded, not 'fair'"),
        ({"load_balancing": []}, r"load_balancing must be one of .* not \[\]"),
        ({"retry_algorithm": []}, r"retry_algorithm must be one of .* not \[\]"),
        ({"num_retries": -1}, "num_retries must be a whole number, 0 or more, not -1"),
        ({"num_retries": True}, "num_retries must be"),
        ({"num_retries": 1.0}, "num_retries must be"),
        ({"retry_algorithm": "quadratic"}, "retry_algorithm must be one of fixed, linear, exponential, fibonacci, not"),
        ({"retry_wait": -1}, "retry_wait must be a number from 0 to 86400, not -1"),
        ({"retry_wait": float("nan")}, "retry_wait must be"),
        ({"retry_wait": "1"}, "retry_wait must be"),
        ({"retry_jitter": 1.1}, "retry_jitter must be a number from 0 to 1, not 1.1"),
        ({"retry_jitter": True}, "retry_jitter must be"),
        ({"retry_on": "LookupError"}, "retry_on must be types of exceptions, or a callable, not 'LookupError'"),
        ({"retry_on": KeyboardInterrupt}, "retry_on must be"),
        ({"retry_on": [LookupError, 1]}, "retry_on must be"),
        ({"retry_on": None}, "retry_on must be"),
        ({"retry_on": lambda error: True}, r"retry_on must accept the keywords .* \*\*context"),
        ({"mode": "thread", "actor_options": {"num_cpus": 1}}, "actor_options are for mode 'ray', not for 'thread'"),
        ({"limits": 1}, "limits must be limits, a limit set, limit sets or a limit pool, not 1"),
        ({"limits": [CallLimit(1, 1), memory_set()]}, "limits must be"),
    ],
)
def test_invalid_options_are_errors(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clerk.options(**options)


def test_every_mode_has_a_member_that_is_its_text() -> None:
    assert [*modes.MODES] == [*ExecutionMode] == ["sync", "thread", "process", "asyncio", "celery", "ray"]
    assert Clerk.options(mode=ExecutionMode.THREAD).mode == "thread"


@pytest.mark.parametrize("name", ["stop", "submit", "get_pool_stats"])
def test_a_worker_cannot_have_methods_that_its_pool_has(name: str) -> None:
    kind = type("Busy", (Worker,), {name: lambda self: None})
    with pytest.raises(ValueError, match=f"Busy must not have a method '{name}'"):
        kind.options()


def elsewhere() -> type[modes.BackEnd]:
    """Import a back end whose package is missing."""
    raise ModuleNotFoundError("no module named 'elsewhere'")


def test_a_mode_without_its_package_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch, "ray")
    options = Clerk.options(mode="ray")
    with pytest.raises(
        ValueError,
        match=r"mode 'ray' requires a package: pip install 'limits-app\[ray\]'",
    ):
        options.init()


def test_a_mode_of_our_own_that_is_missing_is_no_question_of_installing() -> None:
    with pytest.raises(ImportError):
        modes.WorkerMode(elsewhere).back_end()
