"""What importing the engine brings along, and what it does not."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import limits_app
import limits_app.core

MODULES = [module.name for module in pkgutil.walk_packages(limits_app.core.__path__, "limits_app.core.")]

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


def loaded_by(code: str) -> set[str]:
    """The names of all modules that a fresh interpreter has loaded after some code."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_the_core_imports_neither_django_nor_any_client_nor_asyncio() -> None:
    loaded = loaded_by("\n".join(f"import {name}" for name in MODULES))
    assert set(MODULES) <= loaded
    assert not {name for name in loaded if name.startswith(FOREIGN)}


def test_a_limit_set_in_memory_needs_none_of_them_either() -> None:
    loaded = loaded_by(
        "from limits_app import CallLimit, LimitSet, RateLimit, ResourceLimit\n"
        "limits = LimitSet([CallLimit(5, 1), RateLimit('tpm', 5, 1), ResourceLimit('db', 1)])\n"
        "with limits.acquire({'tpm': 1}) as acquisition: acquisition.update({'tpm': 1})\n"
        "assert limits.get_stats()['tpm']['used'] <= 1"
    )
    assert not {name for name in loaded if name.startswith(FOREIGN)}


def test_importing_the_package_imports_nothing_of_it() -> None:
    assert not {name for name in loaded_by("import limits_app") if name.startswith("limits_app.")}


@pytest.mark.parametrize("name", [name for name in limits_app.__all__ if name[0].isupper()])
def test_every_public_name_of_the_engine_resolves(name: str) -> None:
    thing = getattr(limits_app, name)
    assert thing.__name__ == name
    assert thing.__module__.startswith("limits_app.core.")
    assert getattr(limits_app, name) is thing


@pytest.mark.parametrize("module", MODULES)
def test_every_name_that_a_module_promises_is_there(module: str) -> None:
    imported = __import__(module, fromlist=["_"])
    assert all(hasattr(imported, name) for name in getattr(imported, "__all__", ()))
    assert imported.__doc__


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'limits_app' has no attribute 'typo'"):
        limits_app.typo  # noqa: B018 - asking is the test
