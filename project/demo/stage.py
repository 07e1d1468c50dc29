"""Sets up the site of the demo: serves it, sets its limits in the admin, and logs all visitors in."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from project.demo import DemoFailed
from project.demo.administrator import Administrator
from project.demo.client import Cookies
from project.demo.place import Place
from project.demo.server import WORKERS, Address, Server
from project.demo.visitors import VISITORS, log_in, set_up

__all__ = ["Stage", "say", "stage"]

_ADMIN: Final = "admin"


class Stage(NamedTuple):
    """A running site with its limits and logged-in visitors."""

    place: Place
    address: Address
    administrator: Administrator
    policy: str
    """The path of the policy whose limit is changed."""
    cookies: dict[str, Cookies]


def say(step: str) -> None:
    """Print the current step."""
    print(f"... {step}", flush=True)


@contextmanager
def stage() -> Iterator[Stage]:
    """Set up a site in a temporary directory; stop and delete it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="limits-demo-") as directory:
        place = Place(Path(directory))
        say("migrating a new database")
        password = secrets.token_urlsafe()
        place.manage("migrate", "--verbosity=0")
        place.manage(
            "createsuperuser",
            "--noinput",
            f"--username={_ADMIN}",
            "--email=admin@example.org",
            DJANGO_SUPERUSER_PASSWORD=password,
        )
        with Server(place) as server:
            say(f"serving it with {WORKERS} processes on {server.address.url}")
            try:
                yield _set_stage(place, server.address, password)
            except DemoFailed as error:
                raise DemoFailed(f"{error}\nLast lines of the server log:\n{server.last_words()}") from error


def _set_stage(place: Place, address: Address, password: str) -> Stage:
    administrator = Administrator.logged_in(address, _ADMIN, password)
    say("setting limits in the admin")
    passwords = {visitor.name: secrets.token_urlsafe() for visitor in VISITORS if visitor.account}
    policy = set_up(administrator, passwords)
    return Stage(place, address, administrator, policy, log_in(address, passwords))
