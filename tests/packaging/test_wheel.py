"""The built wheel, installed into an empty environment, makes an empty Django project enforce limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from project.demo.browser import Browser
from project.demo.client import Client
from project.demo.place import ROOT
from project.demo.server import Address

pytestmark = [pytest.mark.slow, pytest.mark.release]

SECONDS = 300
"""Longer than any step may take, fetching Django from a package index included."""

NOT_EMPTY = re.compile(r"COV|DJANGO|LIMITS|PYTHON|VIRTUAL_ENV")
"""What may stand in the environment of these tests, and has no place in that of a new project."""

VIEW = """
from django.http import HttpResponse
from limits_app import limited


@limited("reports")
def report(request):
    return HttpResponse("the report")


urlpatterns.append(path("report/", report))
"""


def run(*command: object, directory: Path, **environment: str) -> str:
    """Run a command in a directory as if nothing else were there; gives what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=empty_environment(directory) | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
    return done.stdout


def empty_environment(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not NOT_EMPTY.match(name)}
    return kept | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel, built from this checkout."""
    directory = tmp_path / "wheel"
    directory.mkdir()
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", directory, ROOT, directory=directory)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """The interpreter of an environment in which nothing but the wheel and what it needs is installed."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", directory=tmp_path)
    interpreter = tmp_path / "venv" / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, directory=tmp_path)
    return interpreter


@pytest.fixture
def site(python: Path, tmp_path: Path) -> Path:
    """A new project with the app and its middleware in the settings, one limited view, and a migrated database."""
    directory = tmp_path / "site"
    directory.mkdir()
    run(python.with_name("django-admin"), "startproject", "shop", directory, directory=directory)
    settings = directory / "shop" / "settings.py"
    text = settings.read_text()
    for behind, added in (
        ("django.contrib.staticfiles", "limits_app"),
        (
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "limits_app.integrations.middleware.LimitsMiddleware",
        ),
    ):
        assert text.count(f"    '{behind}',\n") == 1
        text = text.replace(f"    '{behind}',\n", f"    '{behind}',\n    '{added}',\n")
    settings.write_text(text)
    with (directory / "shop" / "urls.py").open("a") as urls:
        urls.write(VIEW)
    run(python, "manage.py", "migrate", directory=directory)
    return directory


@contextmanager
def served(python: Path, site: Path) -> Iterator[Address]:
    """Serve a site on a free port of the loopback interface while the block runs."""
    process = subprocess.Popen(
        [python, "manage.py", "runserver", "--noreload", "127.0.0.1:0"],
        cwd=site,
        env=empty_environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield address_in(process)
        finally:
            process.terminate()


def address_in(process: subprocess.Popen[str]) -> Address:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://(127\.0\.0\.1):(\d+)/", line):
            return Address(match[1], int(match[2]))
    raise AssertionError("the server ended before it listened")


def allow(python: Path, site: Path, calls: int) -> None:
    """Set a limit in a process of its own."""
    code = (
        f"from limits_app import CallLimit, limits; limits.set_resource_limits('reports', [CallLimit({calls}, 86400)])"
    )
    run(python, "manage.py", "shell", "--command", code, directory=site)


def test_the_wheel_has_the_package_with_its_templates_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {
        "limits_app",
        wheel.name.split("-py3")[0],
    }
    templates = {
        f"limits_app/templates/{path.relative_to(ROOT / 'templates').as_posix()}"
        for folder in ("limits_app", "admin/limits_app")
        for path in (ROOT / "templates" / folder).rglob("*.html")
    }
    assert "limits_app/templates/limits_app/429.html" in templates
    assert templates <= names
    static = ROOT / "limits_app" / "static"
    files = {f"limits_app/static/{path.relative_to(static).as_posix()}" for path in static.rglob("*.*")}
    assert "limits_app/static/limits_app/vendor/chart.LICENSE.md" in files
    assert files <= names
    assert {"limits_app/py.typed", "limits_app/migrations/0001_initial.py"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_an_empty_project_in_an_empty_environment_enforces_a_limit(python: Path, site: Path) -> None:
    code = "import sys, limits_app; print(limits_app.RateLimit('tpm', 5, 60).key, 'django' in sys.modules)"
    assert run(python, "-c", code, directory=site) == "tpm False\n"
    assert "no issues" in run(python, "manage.py", "check", "--fail-level", "DEBUG", directory=site)
    assert "No changes" in run(python, "manage.py", "makemigrations", "--check", "--dry-run", directory=site)
    user = {"DJANGO_SUPERUSER_USERNAME": "admin", "DJANGO_SUPERUSER_EMAIL": "admin@example.org"}
    run(python, "manage.py", "createsuperuser", "--noinput", directory=site, DJANGO_SUPERUSER_PASSWORD="secret", **user)
    with served(python, site) as address:
        assert_it_limits(python, site, address)
        assert_it_has_an_admin(address)


def assert_it_limits(python: Path, site: Path, address: Address) -> None:
    visitor = Client(address)
    assert visitor.ask("/report/").text == "the report"
    allow(python, site, 3)
    assert [visitor.ask("/report/").status for _ in range(5)] == [200, 200, 200, 429, 429]
    allow(python, site, 5)
    assert [visitor.ask("/report/").status for _ in range(3)] == [200, 200, 429]
    assert int(visitor.open("/report/").headers["Retry-After"]) >= 1
    visitor.close()


def assert_it_has_an_admin(address: Address) -> None:
    administrator = Browser(address)
    assert administrator.client.ask("/admin/login/").status == 200
    administrator.sign_in("/admin/login/?next=/admin/", "admin", "secret")
    index = administrator.client.ask("/admin/limits_app/")
    assert (index.status, "/admin/limits_app/policy/add/" in index.text) == (200, True)
