"""The built wheel, installed into an empty environment, makes an empty Django project enforce limits."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

import limits_app
from project.demo.browser import Browser
from project.demo.client import Client
from project.demo.place import ROOT
from project.demo.server import Address
from tests.packaging.environments import build_sdist, build_wheel, clean_environment, new_environment, run
from tests.packaging.extras import MODULES, modules_of
from tests.packaging.matrix import PYTHONS, interpreter

pytestmark = [pytest.mark.slow, pytest.mark.release]

VIEW = """
from django.http import HttpResponse
from limits_app import limited


@limited("reports")
def report(request):
    return HttpResponse("the report")


urlpatterns.append(path("report/", report))
"""

USE = """
import django
from django.conf import settings
from django.core.management import call_command

import limits_app

apps = ["django.contrib.contenttypes", "django.contrib.auth", "limits_app"]
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(INSTALLED_APPS=apps, DATABASES=databases, SECRET_KEY="secret", USE_TZ=True)
django.setup()
call_command("migrate", verbosity=0)
limits_app.limits.set_resource_limits("reports", [limits_app.CallLimit(2, 86400)])
admitted = sum(bool(limits_app.limits.try_acquire("reports")) for _ in range(3))
print(limits_app.__version__, admitted, "of 3")
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build_wheel(tmp_path)


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    return new_environment(tmp_path, wheel)


@pytest.fixture
def site(python: Path, tmp_path: Path) -> Path:
    """A new project with the app and its middleware in the settings, one limited view, and a migrated database."""
    directory = tmp_path / "site"
    directory.mkdir()
    run(python.with_name("django-admin"), "startproject", "shop", directory, folder=directory)
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
    run(python, "manage.py", "migrate", folder=directory)
    return directory


@contextmanager
def served(python: Path, site: Path) -> Iterator[Address]:
    """Serve a site on a free port of the loopback interface while the block runs."""
    process = subprocess.Popen(
        [python, "manage.py", "runserver", "--noreload", "127.0.0.1:0"],
        cwd=site,
        env=clean_environment(site),
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
    run(python, "manage.py", "shell", "--command", code, folder=site)


def test_the_wheel_has_the_package_with_its_templates_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0].removesuffix(".dist-info") for name in names} == {
        "limits_app",
        wheel.name.split("-py3")[0],
    }
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "limits_app" / "templates").rglob("*.html")}
    assert "limits_app/templates/limits_app/429.html" in templates
    assert templates <= names
    static = ROOT / "limits_app" / "static"
    files = {f"limits_app/static/{path.relative_to(static).as_posix()}" for path in static.rglob("*.*")}
    assert "limits_app/static/limits_app/vendor/chart.LICENSE.md" in files
    assert files <= names
    assert "limits_app/locale/de/LC_MESSAGES/django.mo" in names
    assert not [name for name in names if name.endswith((".po", ".so", ".pyd", ".c"))]
    assert {"limits_app/py.typed", "limits_app/migrations/0001_initial.py"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_an_empty_project_in_an_empty_environment_enforces_a_limit(python: Path, site: Path) -> None:
    code = "import sys, limits_app; print(limits_app.RateLimit('tpm', 5, 60).key, 'django' in sys.modules)"
    assert run(python, "-c", code, folder=site) == "tpm False\n"
    assert "no issues" in run(python, "manage.py", "check", "--fail-level", "DEBUG", folder=site)
    assert "No changes" in run(python, "manage.py", "makemigrations", "--check", "--dry-run", folder=site)
    user = {"DJANGO_SUPERUSER_USERNAME": "admin", "DJANGO_SUPERUSER_EMAIL": "admin@example.org"}
    run(python, "manage.py", "createsuperuser", "--noinput", folder=site, DJANGO_SUPERUSER_PASSWORD="secret", **user)
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
    assert (index.status, "/admin/limits_app/overview/" in index.text) == (200, True)


def test_the_wheel_and_the_archive_of_sources_work_with_each_python_that_is_here(wheel: Path, tmp_path: Path) -> None:
    pythons = {version: python for version in PYTHONS if (python := interpreter(version))}
    assert pythons
    files = {"wheel": wheel, "sdist": build_sdist(tmp_path)}
    for (version, python), (kind, file) in product(pythons.items(), files.items()):
        place = tmp_path / f"{kind}-{version}"
        installed = new_environment(place, file, python=python)
        assert run(installed, "-c", USE, folder=place) == f"{limits_app.__version__} 2 of 3\n"


@pytest.mark.parametrize("extra", MODULES)
def test_extra_alone_installs_the_packages_that_its_modules_import(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = new_environment(tmp_path, f"limits-app[{extra}] @ {wheel.as_uri()}")
    code = f"""
import importlib

import django
from django.conf import settings

names = ["contenttypes", "auth", "sessions", "messages", "admin"]
settings.configure(INSTALLED_APPS=[*(f"django.contrib.{{name}}" for name in names), "limits_app"], SECRET_KEY="secret")
django.setup()
for module in {modules_of(extra)}:
    importlib.import_module(module)
"""
    run(python, "-c", code, folder=tmp_path)
