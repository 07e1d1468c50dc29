"""Short functions as lines that are written into others, since to call one costs as much as what it does.

What cannot be written so is called: where its source is not at hand, or loops, or does not end in returns.
"""

from __future__ import annotations

import ast
import builtins
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from linecache import getlines
from types import CodeType, FunctionType
from typing import Final

__all__ = ["Step", "step_of"]

_STATE: Final = "{state}"
_NOW: Final = "now"
_AMOUNT: Final = "{amount}"
_ARGUMENTS: Final = (_STATE, _NOW, _AMOUNT, "taken_at")
_RESULT: Final = "{result}"
_AROUND: Final = "{0}_{{suffix}}"
_OWN: Final = "_{0}"
"""As one step follows the other, all may have the same names for what is theirs."""
_REFUSED: Final = "{refused}"
_REFUSE: Final = ast.Return(ast.Name(_REFUSED))
_CHECK: Final = f"if {_RESULT} is None: return {_REFUSED}"

_TRIES: Final = 20
_WRITABLE: Final = (
    *(ast.Assign, ast.AugAssign, ast.If, ast.Return, ast.Name, ast.Constant, ast.Tuple, ast.IfExp, ast.expr_context),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
    *(ast.Call, ast.keyword, ast.Attribute, ast.Subscript),
)
"""What functions may consist of; nothing with braces, since the lines are patterns."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What a function (state[, now[, amount[, taken_at]]]) does, as patterns of lines.

    `around` are the names that it has from around it; None where the lines call it.
    """

    around: tuple[str, ...] | None
    patterns: tuple[str, ...]

    def names(self, suffix: str) -> list[str]:
        """What must be bound around the lines."""
        return [f"{name}_{suffix}" for name in (("step",) if self.around is None else self.around)]

    def values(self, function: object) -> list[object]:
        """What these names stand for in a function that takes this step."""
        if self.around is None or not isinstance(function, FunctionType):
            return [function]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = ChainMap({name: cell.cell_contents for name, cell in cells}, function.__globals__, vars(builtins))
        return [names[name] for name in self.around]

    def lines(self, suffix: str, *, state: str, amount: str, result: str, refused: str) -> list[str]:
        """The lines, which assign the result, or return what is `refused` where that is None."""
        told = {"suffix": suffix, "state": state, "amount": amount, "result": result, "refused": refused}
        return [pattern.format_map(told) for pattern in self.patterns]


def step_of(function: object, arguments: int = 3) -> Step:
    """The step that a function takes, which has so many of the arguments."""
    written = _written(function.__code__) if isinstance(function, FunctionType) else None
    return written or _calling(arguments)


@cache
def _calling(arguments: int) -> Step:
    return Step(None, (f"{_RESULT} = step_{{suffix}}({', '.join(_ARGUMENTS[:arguments])})", _CHECK))


@cache  # as many as there are in the source
def _written(code: CodeType) -> Step | None:
    """The step of a function, written out; None where it must be called."""
    definition = _definitions(code.co_filename).get(code)
    if definition is None:
        return None
    body = deepcopy(definition.body)  # several threads may ask at the same time
    nodes = [node for statement in body for node in ast.walk(statement)]
    if not all(isinstance(node, _WRITABLE) for node in nodes):
        return None
    results: list[ast.expr] = []
    try:
        statements = [*_without_returns(body, results)]
    except _EndsWithoutReturn:
        return None
    names = _Names(code, [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)])
    lines = "\n".join([ast.unparse(names.visit(statement)) for statement in statements]).splitlines()
    checks = [] if all(map(_is_something, results)) else [_CHECK]
    return Step(tuple(names.around), (*names.copies, *lines, *checks))


@cache
def _definitions(filename: str) -> dict[CodeType, ast.FunctionDef]:
    """The functions in a file, by what they are compiled to: if the file has changed, that is not what runs."""
    source = "".join(getlines(filename))
    try:
        tree, module = _parsed(source), compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, SystemError):
        return {}
    codes = {(code.co_name, code.co_firstlineno): code for code in _codes(module)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    return {codes[node.name, node.lineno]: node for node in functions}


def _parsed(source: str) -> ast.Module:
    """What `ast.parse` makes of it, which fails on Python 3.11 where another thread parses something meanwhile.

    Raises SystemError when it fails every time (https://github.com/python/cpython/issues/106905).
    """
    for _ in range(_TRIES - 1):
        with suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _EndsWithoutReturn(Exception):
    """A way through a function does not end in a return."""


def _without_returns(statements: Sequence[ast.stmt], results: list[ast.expr]) -> Iterator[ast.stmt]:
    """What a body does, its results assigned: what follows a block that returns goes into its `else`."""
    for number, statement in enumerate(statements):
        if isinstance(statement, ast.Return):
            yield _assigned(statement.value, results)
            return
        if isinstance(statement, ast.If) and any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            rest = [*statement.orelse, *statements[number + 1 :]]
            ways = [[*_without_returns(way, results)] for way in (statement.body, rest)]
            yield ast.If(statement.test, *ways)
            return
        yield statement
    raise _EndsWithoutReturn


def _assigned(value: ast.expr | None, results: list[ast.expr]) -> ast.stmt:
    """The result of a return, assigned and noted; None refuses."""
    if value is None or _is_none(value):
        return _REFUSE
    if isinstance(value, ast.IfExp) and _is_none(value.orelse):
        return ast.If(value.test, [_assigned(value.body, results)], [_REFUSE])
    results.append(value)
    return ast.Assign([ast.Name(_RESULT)], value, lineno=0)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_something(value: ast.expr) -> bool:
    """Whether a value can be seen not to be None."""
    if isinstance(value, ast.IfExp):
        return _is_something(value.body) and _is_something(value.orelse)
    return isinstance(value, ast.Tuple)


class _Names(ast.NodeTransformer):
    """Gives names a suffix, and arguments the names that they have where the lines stand.

    `around` are those that come from around the function; `copies` are lines for arguments that it assigns to.
    """

    def __init__(self, code: CodeType, assigned: Iterable[str]) -> None:
        arguments = dict(zip(code.co_varnames[: code.co_argcount], _ARGUMENTS, strict=False))
        own = [*dict.fromkeys(assigned)]
        self.copies = [f"{_OWN.format(name)} = {arguments[name]}" for name in own if name in arguments]
        self.around: dict[str, None] = {}
        self._names = arguments | {name: _OWN.format(name) for name in own}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """What a name is where the lines stand."""
        if node.id in (_RESULT, _REFUSED):
            return node
        name = self._names.get(node.id)
        if name is None:
            self.around[node.id] = None
            name = _AROUND.format(node.id)
        return ast.Name(name, node.ctx)
