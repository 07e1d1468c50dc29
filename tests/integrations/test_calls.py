"""How much of the package a request runs: the number of calls into it, and of files that they are in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.test import Client

import limits_app
from limits_app.engine.limits import CallLimit
from tests.integrations.site import endpoint, fine, limit

PACKAGE = str(Path(limits_app.__file__).parent)
DATABASE_STORE = f"{PACKAGE}/stores/database/"
LOCKS = f"{PACKAGE}/engine/locks.py"


@contextmanager
def profiled() -> Iterator[list[tuple[str, str]]]:
    """The calls into the package in the block, file and function.

    Those of database stores of other tests are left out: such a store closes old connections at the start of each
    request for as long as it is referred to. So are locks, which are those of C except in Python 3.14.
    """
    called: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        file = code.co_filename
        if event == "call" and file.startswith(PACKAGE) and not file.startswith((DATABASE_STORE, LOCKS)):
            called.append((file.removeprefix(PACKAGE), code.co_name))

    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("earlier", "status", "calls", "files"),
    [pytest.param(2, 200, 40, 23, id="admitted"), pytest.param(9, 429, 69, 32, id="rejected")],
)
def test_a_request_makes_few_calls(
    client: Client, serve: Any, earlier: int, status: int, calls: int, files: int
) -> None:
    serve({"x/": fine})
    endpoint(limit("api", CallLimit(9, 3600)), "/x/")
    for _ in range(earlier):
        assert client.get("/x/", headers={"X-Who": "ann"}).status_code == 200
    if status == 429:
        assert client.get("/x/", headers={"X-Who": "ann"}).status_code == 429
    with profiled() as called:
        response = client.get("/x/", headers={"X-Who": "ann"})
    assert response.status_code == status
    told = "\n".join(map(str, called))
    assert len(called) <= calls, told
    assert len({file for file, _ in called}) <= files, told
