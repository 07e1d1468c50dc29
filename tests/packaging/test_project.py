"""The public CI and CONTRIBUTING.md agree with the package, the Makefile and the tests; so does the audit."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from typing import Any

import pytest
import yaml

from limits_app.engine.algorithms import compile_rule
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm
from limits_app.stores.redis.commands import ScriptFrame
from limits_app.stores.redis.states import LUA_ALGORITHMS
from tests.docs.pages import ROOT
from tests.packaging.audit import verdict
from tests.packaging.matrix import DJANGOS, PYTHONS, fits

JOBS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
COMMANDS = [step["run"] for _, step in STEPS if "run" in step]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_matrix_has_each_declared_pair_of_python_and_django() -> None:
    matrix = JOBS["linux"]["strategy"]["matrix"]
    assert (matrix["python"], matrix["django"]) == (PYTHONS, DJANGOS)
    left_out = {(pair["python"], pair["django"]) for pair in matrix["exclude"]}
    assert left_out == {pair for pair in product(PYTHONS, DJANGOS) if not fits(*pair)}


@pytest.mark.parametrize("name", ["compiled", "systems"])
def test_the_compiled_wheel_and_other_systems_have_the_oldest_and_the_newest_python(name: str) -> None:
    assert JOBS[name]["strategy"]["matrix"]["python"] == [PYTHONS[0], PYTHONS[-1]]


def test_other_systems_are_macos_and_windows() -> None:
    matrix = JOBS["systems"]["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["system"]} == {"macos", "windows"}


def test_compiled_wheels_are_built_for_each_declared_python() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["cibuildwheel"]["build"].split() == [f"cp{version.replace('.', '')}-*" for version in PYTHONS]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_checks_the_code_out_and_names_a_declared_python(name: str) -> None:
    job = JOBS[name]
    assert set(job) <= {"env", "if", "needs", "runs-on", "services", "steps", "strategy"}
    assert set(job.get("needs", ())) <= JOBS.keys()
    checkout, python, *steps = job["steps"]
    assert checkout["uses"].startswith("actions/checkout@")
    assert python["uses"].startswith("actions/setup-python@")
    assert python["with"]["python-version"] in {*PYTHONS, "${{ matrix.python }}"}
    assert all(len({"run", "uses"} & step.keys()) == 1 for step in steps)
    used = set(re.findall(r"matrix\.(\w+)", str(job)))
    assert used == job.get("strategy", {}).get("matrix", {}).keys() - {"exclude"}


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_a_command_names_targets_and_files_that_exist(command: str) -> None:
    assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= TARGETS
    for path in re.findall(r"\b(?:tests/[\w/.]+|requirements[\w-]*\.txt)", command):
        assert (ROOT / path).exists(), path


def test_the_mysql_job_selects_tests_and_gives_them_the_port_of_its_server() -> None:
    assert JOBS["mysql"]["env"] == {"LIMITS_TESTS_MYSQL_PORT": "3306"}
    assert "LIMITS_TESTS_MYSQL_PORT" in (ROOT / "tests" / "servers" / "mariadb.py").read_text()
    assert "binary_logging" in (ROOT / "tests" / "configuration" / "test_migrating.py").read_text()
    assert "class TestMariaDB" in (ROOT / "tests" / "stores" / "test_server_conformance.py").read_text()


SOUND = {"name": "django", "version": "5.2", "vulns": []}
FAULTY = {"name": "lmdb", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1", "2.0"]}]}
SKIPPED = {"name": "redis", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "strict", "code", "text"),
    [
        ([SOUND], True, 0, "1 packages audited, 0 known vulnerabilities."),
        (
            [SOUND, FAULTY],
            False,
            1,
            "2 packages audited, 1 known vulnerabilities.\nlmdb 1.0: CVE-1, corrected in 1.1, 2.0",
        ),
        ([SOUND, SKIPPED], False, 0, "1 packages audited, 0 known vulnerabilities.\nNOT AUDITED, .*: redis"),
        ([SKIPPED], True, 1, "0 packages audited, 0 known vulnerabilities.\nNOT AUDITED, .*: redis"),
    ],
)
def test_vulnerabilities_fail_the_audit_and_packages_that_were_left_out_are_named(
    packages: list[dict[str, Any]], strict: bool, code: int, text: str
) -> None:
    assert verdict(packages, strict=strict)[0] == code
    assert re.fullmatch(text, verdict(packages, strict=strict)[1])


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MADE_BY_COMMANDS = {"build/site", "dist/", "mutants/"}
FILES = {
    name
    for name in re.findall(r"`([\w./-]+(?:/|/\w+|\.\w+))`", CONTRIBUTING)
    if not re.search("NAME|NNNN|^limits_app[.]", name)
}


def test_every_file_of_the_guide_exists() -> None:
    places = (ROOT, ROOT / "limits_app")
    assert not [name for name in FILES - MADE_BY_COMMANDS if not any((place / name).exists() for place in places)]


def test_a_target_of_the_guide_exists() -> None:
    named = set(re.findall(r"make ([a-z-]+)[` ]", CONTRIBUTING))
    assert {"test", "test-all", "check", "release-check"} <= named <= TARGETS


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_an_algorithm_has_a_rule_a_lua_implementation_a_stored_format_and_a_page(algorithm: RateLimitAlgorithm) -> None:
    rule = compile_rule(RateLimit("x", 10, 60, algorithm), 0)
    lua = LUA_ALGORITHMS[rule.lua[0]]
    files = ROOT / "limits_app" / "stores" / "redis"
    script, carry = (files / f"{lua.files[-1]}.lua").read_text(), (files / "carry.lua").read_text()
    letter = lua.letter.decode()
    assert len(re.findall(rf"algorithms\.{letter}(?:\(| = )", script)) == 1
    formats, tags, parts = (re.search(f"local {name} = (.*)", carry) for name in ("formats", "tags", "has_parts"))
    assert formats is not None
    assert f" {letter} = '" in formats[1].replace("{", "{ "), f"formats of carry.lua has no {letter}"
    assert tags is not None
    assert parts is not None
    assert f" {letter} = '{''.join(f'I{size}' for size in lua.tag_sizes)}'" in tags[1].replace("{", "{ ")
    assert (f"{letter} = true" in parts[1]) is lua.has_parts
    assert len(rule.lua_format) >= len(rule.start)
    assert f"## {algorithm.label[0].upper()}{algorithm.label[1:]}" in (ROOT / "docs" / "algorithms.md").read_text()


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_an_algorithm_is_in_the_lists_of_the_documentation(algorithm: RateLimitAlgorithm) -> None:
    commands = (ROOT / "docs" / "commands.md").read_text()
    names = re.search(r"^The algorithms are (.+)$", commands, re.MULTILINE)
    assert names is not None
    assert f"`{algorithm}`" in names[1]
    page = (ROOT / "docs" / "algorithms.md").read_text()
    anchor = algorithm.label.lower().replace(" ", "-")
    assert f"| [{algorithm.label}](#{anchor}) |" in page
    choice = page.partition("\nHow to choose:\n")[2].partition("\n## ")[0].lower()
    assert f"**{algorithm.label.lower()}**" in choice


def test_a_script_that_reads_states_of_every_rule_has_all_algorithms_with_letters_of_their_own() -> None:
    script = ScriptFrame("acquire", frozenset(), b"", key_count=1).carrying(0).text
    for algorithm in LUA_ALGORITHMS.values():
        assert len(re.findall(rf"algorithms\.{algorithm.letter.decode()}(?:\(| = )", script)) == 1
    assert len({algorithm.letter for algorithm in LUA_ALGORITHMS.values()}) == len(LUA_ALGORITHMS)
