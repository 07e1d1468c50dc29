"""What importing the engine brings along, and what it does not."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import limits_app
import limits_app.acquiring
import limits_app.engine

pytestmark = pytest.mark.slow

MODULES = [
    module.name
    for package in (limits_app.engine, limits_app.acquiring)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]

FOREIGN = (
    "django",
    "redis",
    "django_redis",
    "hiredis",
    "celery",
    "rest_framework",
    "lmdb",
    "asyncio",
    "limits_app.conf",
)


NEED_SETTINGS = {"limits", "limited", "exempt", "LimitedRequest", "RequestLimits", "Share"}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run some code in a fresh interpreter, in which no Django is configured unless the environment says so."""
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=kept | environment)


def loaded_by(code: str) -> set[str]:
    """The names of all modules that a fresh interpreter has loaded after some code."""
    done = run(f"{code}\nimport sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_engine_imports_neither_django_nor_any_client_nor_asyncio() -> None:
    loaded = loaded_by("\n".join(f"import {name}" for name in MODULES))
    assert set(MODULES) <= loaded
    assert not {name for name in loaded if name.startswith(FOREIGN)}


def test_the_names_of_the_engine_and_a_limit_set_in_memory_need_none_of_them_either() -> None:
    engine = ", ".join(name for name in limits_app.__all__ if name not in NEED_SETTINGS)
    loaded = loaded_by(
        f"from limits_app import {engine}\n"
        "limits = LimitSet([CallLimit(5, 1), RateLimit('tpm', 5, 1), ResourceLimit('db', 1)])\n"
        "with limits.acquire({'tpm': 1}) as acquisition: acquisition.update({'tpm': 1})\n"
        "assert limits.get_stats()['tpm']['used'] <= 1"
    )
    assert not {name for name in loaded if name.startswith(FOREIGN)}


def test_the_names_of_a_site_need_settings() -> None:
    names = [*NEED_SETTINGS, "*"]
    code = f"""
from django.core.exceptions import ImproperlyConfigured
for name in {names}:
    try:
        exec(f"from limits_app import {{name}}")
    except ImproperlyConfigured as error:
        print(name, str(error).startswith("Requested setting"))
"""
    assert run(code).stdout.splitlines() == [f"{name} True" for name in names]


def test_all_names_are_imported_together() -> None:
    code = "import django; django.setup(); from limits_app import *; print(limits.__name__, limited, LimitSet)"
    done = run(code, DJANGO_SETTINGS_MODULE="project.settings")
    assert done.stdout.startswith("limits_app.services <class 'limits_app.integrations.decorators.limited'> <class"), (
        done.stderr
    )


def test_importing_the_package_imports_nothing_of_it() -> None:
    assert not {name for name in loaded_by("import limits_app") if name.startswith("limits_app.")}


def test_every_public_name_is_listed_and_resolves() -> None:
    assert set(limits_app.__all__) <= set(dir(limits_app))
    for name in [name for name in limits_app.__all__ if name[0].isupper()]:
        thing = getattr(limits_app, name)
        assert thing.__name__ == name
        plain, of_sites = (
            ("limits_app.acquiring.", "limits_app.engine."),
            ("limits_app.integrations.", "limits_app.services."),
        )
        assert thing.__module__.startswith(of_sites if name in NEED_SETTINGS else plain)
        assert getattr(limits_app, name) is thing


def test_every_name_in_all_exists() -> None:
    imported = [__import__(module, fromlist=["_"]) for module in MODULES]
    promised = [(module, name) for module in imported for name in getattr(module, "__all__", ())]
    assert not [(module.__name__, name) for module, name in promised if not hasattr(module, name)]
    assert not [module.__name__ for module in imported if not module.__doc__]


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'limits_app' has no attribute 'typo'"):
        limits_app.typo  # noqa: B018 - asking is the test


def test_a_system_without_forks_and_posix_modules_runs_the_process_store(tmp_path: Path) -> None:
    """As Windows does, except for its locks of files."""
    code = """
import os, sys
for name in {"fork", "register_at_fork", "mkfifo", "getuid", "geteuid"} & {*dir(os)}:
    delattr(os, name)
sys.modules |= dict.fromkeys(("fcntl", "pwd", "resource"))
import django
django.setup()
from django.core.management import call_command
call_command("limits", "--help")
from limits_app import CallLimit, LimitSet
with LimitSet([CallLimit(1, 60)], shared=True, mode="process").acquire() as acquisition:
    print(acquisition.outcome)
"""
    done = run(code, DJANGO_SETTINGS_MODULE="project.settings", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
