"""Names mean one thing: no class or type is defined twice, and local variables name the thing."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from limits_app.models.prefixes import OF_REQUESTS, USER
from tests.docs.pages import ROOT

PACKAGE = ROOT / "limits_app"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts]

HOMONYMS = 0
"""At most so many names of classes and types are defined in several modules; lower it with each that goes."""
VAGUE = {"one", "found", "there", "said", "given", "wanted", "known", "held", "place"}
VAGUE_LOCALS = 17
"""At most so many local variables have a name that says where it stands in a sentence; lower it with each that goes."""
OF_DJANGO = {"Meta"}
"""A name that Django asks for."""
OTHER_PREFIXES = {"models/prefixes.py", "models/rule_fields.py"}
"""The module that names prefixes, and one whose costs begin with “header:”."""


def test_no_class_or_type_is_defined_in_two_modules() -> None:
    modules: dict[str, set[str]] = {}
    for path in MODULES:
        for name in types_in(path.read_text()):
            modules.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    homonyms = {name: sorted(files) for name, files in modules.items() if len(files) > 1 and name not in OF_DJANGO}
    advice = "name a class or type for what it is, such as FilePlan, so that its name is defined in one module"
    assert len(homonyms) <= HOMONYMS, f"{advice}: {homonyms}"


def test_local_variables_name_the_thing() -> None:
    counts = Counter[str]()
    for path in MODULES:
        counts[path.relative_to(PACKAGE).as_posix()] += sum(name in VAGUE for name in locals_in(path.read_text()))
    advice = f"name local variables for what they are, such as policy, limit or row, and not {', '.join(sorted(VAGUE))}"
    assert counts.total() <= VAGUE_LOCALS, f"{counts.total()}: {advice}; most are in {counts.most_common(10)}"


def test_no_constant_is_defined_in_two_modules() -> None:
    modules: dict[tuple[str, str], list[str]] = {}
    for path in MODULES:
        for name, value in constants_in(path.read_text()):
            modules.setdefault((name, value), []).append(path.relative_to(PACKAGE).as_posix())
    advice = "import a constant from one module, or name each for what it is"
    assert {constant: files for constant, files in modules.items() if len(files) > 1} == {}, advice


def test_constants_are_found_with_and_without_annotations() -> None:
    source = 'MOST: Final = 2 * 5\n_MOST = 2*5\nKEPT: Final[dict[str, int]] = {}\nT = TypeVar("T")\nlocal = 1'
    assert [*constants_in(source)] == [("MOST", "2 * 5"), ("MOST", "2 * 5")]


def test_prefixes_of_identifiers_are_named_in_one_module() -> None:
    literals: dict[str, list[str]] = {}
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        if name not in OTHER_PREFIXES and not name.startswith("testing/"):
            literals[name] = [text for text in texts_in(path.read_text()) if text.startswith((USER, *OF_REQUESTS))]
    advice = "use the names in limits_app.models.prefixes"
    assert {name: texts for name, texts in literals.items() if texts} == {}, advice


def test_prefixes_are_found_in_texts_and_formats() -> None:
    assert [*texts_in('"""ip: is a prefix."""\na, b = "ip:", f"user:{1}"')] == ["ip:", "user:"]


def types_in(source: str) -> Iterator[str]:
    """The names of the classes of a module, also of nested ones, and of its aliases of types."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr()) | ast.Subscript()):
                if name[:1].isupper() and not name.isupper():
                    yield name


def constants_in(source: str) -> Iterator[tuple[str, str]]:
    """The constants of a module with their values, but not variables of types and containers that are filled later."""
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        text = ast.unparse(value)
        if name.isupper() and text not in {"[]", "{}"} and not text.startswith(("TypeVar(", "ParamSpec(")):
            yield name.lstrip("_"), text


def texts_in(source: str) -> Iterator[str]:
    """The texts of a module and the parts of its formatted texts, without docstrings."""
    module = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def locals_in(source: str) -> Iterator[str]:
    """The names that a module binds, once for each place: variables, and parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_both_kinds_of_names_are_found() -> None:
    source = (
        "Text = str | None\nclass Outer:\n    class Inner: ...\ndef f(one, *, known): found = [held for held in one]"
    )
    assert [*types_in(source)] == ["Outer", "Inner", "Text"]
    assert {*locals_in(source)} >= {"one", "known", "found", "held"}
    assert Path(__file__) not in MODULES
