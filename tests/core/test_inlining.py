"""Short functions that are written into others do what they do when they are called, or are called."""

from __future__ import annotations

import ast
import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count, product
from pathlib import Path
from types import ModuleType

import pytest
from limits_app.core.inlining import Step, step_of

from limits_app.core.algorithms import compile_rule
from limits_app.core.limits import CallLimit, Limit, QuotaLimit, RateLimitAlgorithm, ResourceLimit

_NUMBERS = count(1)
_SOURCE = """
MOST = 12

def within(full):
    def take(state, now, amount):
        level, last = state
        if now > last:
            level, last = max(level - (now - last), 0), now
        level += amount
        return (level, last) if level <= full else None
    return take

def guarded(state, now, amount):
    if state[0] + amount > MOST:
        return None
    elif amount == 0:
        return state
    if now < 5:
        amount = -amount
        now = now + 1
        return amount, now
    return add(state[0], amount), now

def add(left, right):
    return left + right

def perhaps(state, now, amount):
    return None if amount else state

def bare(state, now, amount):
    if amount > 1:
        return
    return (now, amount) if now else (amount, now)

def dated(state, now, amount, taken_at):
    return state if taken_at > now else (amount, taken_at)

def looping(state, now, amount):
    for number in range(amount):
        now += number
    return state[0], now

def endless(state, now, amount):
    if amount:
        return state

def within_a_block(state, now, amount):
    if amount:
        now += 1
    else:
        if now:
            return state
    return amount, now

def decorated(function):
    return function

@decorated
def with_decorator(state, now, amount):
    return amount, now

short = lambda state, now, amount: (amount, now)
"""


@pytest.fixture
def functions(tmp_path: Path) -> ModuleType:
    """Functions of a module of their own."""
    return imported(tmp_path / "functions.py", _SOURCE)


def imported(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = spec_from_file_location(f"functions_{next(_NUMBERS)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written_into_another(function: Callable[..., object], step: Step) -> Callable[..., object]:
    """A function that consists of what a step writes."""
    lines = step.lines("0_1", state="state", amount="much", result="result", refused="'refused'")
    body = "\n".join(f"  {line}" for line in (*lines, "return result"))
    source = (
        f"def bind({', '.join(step.names('0_1'))}):\n def other(state, now, much, taken_at=0):\n{body}\n return other"
    )
    made: dict[str, Callable[..., Callable[..., object]]] = {}
    exec(source, made)  # noqa: S102 - as the engine does
    return made["bind"](*step.values(function))


def cases() -> Iterator[tuple[tuple[int, int], int, int]]:
    return product([(0, 0), (3, 7), (12, 2)], (0, 2, 9), (0, 1, 6, 30))


@pytest.mark.parametrize("name", ["guarded", "perhaps", "bare", "looping", "within_a_block", "with_decorator", "short"])
def test_what_is_written_does_what_the_function_does(functions: ModuleType, name: str) -> None:
    function = getattr(functions, name)
    written = written_into_another(function, step_of(function))
    for state, now, amount in cases():
        expected = function(state, now, amount)
        assert written(state, now, amount) == ("refused" if expected is None else expected)


def test_what_a_function_has_around_it_is_bound(functions: ModuleType) -> None:
    for full in (5, 20):
        take = functions.within(full)
        step = step_of(take)
        assert step.around is not None
        assert full in step.values(take)
        written = written_into_another(take, step)
        assert written((4, 0), 1, full - 3) == (full, 1)
        assert written((4, 0), 1, full - 2) == "refused"


def test_functions_of_the_same_source_take_the_same_step(functions: ModuleType) -> None:
    assert step_of(functions.within(1)) is step_of(functions.within(2))


def test_what_only_sees_its_names_says_when_it_was_taken(functions: ModuleType) -> None:
    step = step_of(functions.dated, 4)
    assert step.around == ()
    written = written_into_another(functions.dated, step)
    assert written((1, 1), 5, 3, 6) == (1, 1)
    assert written((1, 1), 5, 3, 4) == (3, 4)


@pytest.mark.parametrize("name", ["looping", "endless", "with_decorator", "short"])
def test_what_cannot_be_written_is_called(functions: ModuleType, name: str) -> None:
    function = getattr(functions, name)
    assert step_of(function).around is None
    assert step_of(function).values(function) == [function]


def test_what_is_no_plain_function_is_called(functions: ModuleType) -> None:
    function = partial(functions.dated, taken_at=0)
    assert written_into_another(function, step_of(function))((1, 1), 5, 3) == (3, 0)


def test_what_is_called_is_told_when_it_was_taken(functions: ModuleType) -> None:
    function = partial(functions.dated)
    assert written_into_another(function, step_of(function, 4))((1, 1), 5, 3, 4) == (3, 4)


def test_a_function_without_a_source_is_called() -> None:
    made: dict[str, Callable[..., object]] = {}
    exec("def take(state, now, amount): return now, amount", made)  # noqa: S102 - a function of no file
    assert step_of(made["take"]).around is None


@pytest.mark.parametrize("change", [("MORE", "SO_MUCH"), ("def", "\ndef"), ("return", "return (")])
def test_a_function_whose_source_has_changed_since_is_called(tmp_path: Path, change: tuple[str, str]) -> None:
    source = f"MORE, SO_MUCH = 1, 2\ndef take(state, now, amount):\n return {next(_NUMBERS)}, amount + MORE\n"
    module = imported(tmp_path / "functions.py", source)
    (tmp_path / "functions.py").write_text(source.replace(*change))
    linecache.checkcache()
    assert step_of(module.take).around is None
    assert written_into_another(module.take, step_of(module.take))((0, 0), 0, 4) == module.take((0, 0), 0, 4)


@contextmanager
def interrupting(times: int) -> Iterator[list[int]]:
    """Read something else whenever garbage is collected, as another thread may do then, so many times."""
    done = list[int]()

    def read(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and len(done) < times:
            done.append(0)
            ast.parse("1")

    threshold = gc.get_threshold()
    gc.callbacks.append(read)
    gc.set_threshold(100)
    try:
        yield done
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(read)


def test_a_source_is_read_while_others_read_theirs(tmp_path: Path) -> None:
    functions = [f"def f{number}(state, now, amount):\n return (amount + {number}, now)" for number in range(1_000)]
    source = "\n".join(functions)
    module = imported(tmp_path / "functions.py", source)
    with interrupting(100) as done:
        step = step_of(module.f7)
    # Since 3.12 the garbage collector waits for the end of what is written in C, such as reading a source.
    assert len(done) >= (100 if sys.version_info < (3, 12) else 1)
    assert step.around == ()


def test_a_function_whose_source_python_fails_to_read_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> ast.Module:
        raise SystemError("AST constructor recursion depth mismatch (before=87, after=79)")

    module = imported(tmp_path / "functions.py", f"def take(state, now, amount):\n return {next(_NUMBERS)}, amount\n")
    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", fail)
        step = step_of(module.take)
    assert step.around is None


@pytest.mark.parametrize(
    "limit",
    [
        *[CallLimit(10, 60, algorithm) for algorithm in RateLimitAlgorithm],
        ResourceLimit("connections", 5),
        QuotaLimit("tokens", 10, "day"),
    ],
)
def test_what_rules_take_is_written_out(limit: Limit) -> None:
    rule = compile_rule(limit, 10_000_000)
    assert step_of(rule.take).around is not None
    assert step_of(rule.settle_dated or rule.settle).around is not None
