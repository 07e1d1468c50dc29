"""What the code of the documentation finds when it runs: a site of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from pytest_django import Settings

from limits_app.policies import resolver
from limits_app.services.url_matching import endpoints
from tests.opened import open_none
from tests.replacing import temporary_files_in

NUMBERS: Final = count(1)


@pytest.fixture
def site(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> Iterator[ModuleType]:
    """A module in which a page's code runs, as in `manage.py shell`: the site has other URLs than those of the page.

    Its changes are committed, as on a real site; its limits are in a memory store that no other page has used,
    and its files in a directory of its own.
    """
    module = ModuleType(f"page_{next(NUMBERS)}")
    settings.ROOT_URLCONF = ()
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "localhost"]  # as with DEBUG
    settings.LIMITS = {
        "STORE": module.__name__,
        "STORES": {module.__name__: {"KIND": "memory"}},
        "STATE_DIR": str(tmp_path / "state"),
    }
    monkeypatch.setitem(sys.modules, module.__name__, module)
    temporary_files_in(monkeypatch, tmp_path)
    open_none(monkeypatch)  # nobody shall find a store later whose files are gone
    _forget_limits()
    yield module
    _forget_limits()
    shutil.rmtree(tmp_path)  # state files are large


def _forget_limits() -> None:
    """Nothing that was compiled from the database of one test is right in another one."""
    resolver.clear()
    endpoints.clear()
