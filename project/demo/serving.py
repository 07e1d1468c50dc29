"""Serves the demo with sample data, which are kept, until Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from project.demo.place import ROOT, Place
from project.demo.server import WORKERS, Address, command, listen

__all__ = ["serve"]


def serve(port: int, directory: Path) -> NoReturn:
    """Replace this process with the server. Raises DemoFailed if the port is in use or a command fails."""
    listener = listen(port)
    place = Place(directory.resolve(), debug=True, sends_alerts=True)
    place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.manage("migrate", "--verbosity=0")
    place.manage("shell", "--verbosity=0", "--command", "from project.demo.seed import seed; seed()")
    url = Address(*listener.getsockname()).url
    print(f"The demo is served by {WORKERS} processes on {url} until you press Ctrl-C.")
    print(f"The admin is at {url}admin/ (user admin, password admin: for this demo only).")
    print(f"Mails of alerts are on {url}mail/, and files in {place.mail}.")
    print(f"Its data stays in {place.directory}: delete that directory to start again.", flush=True)
    listener.set_inheritable(True)
    os.chdir(ROOT)
    arguments = [*command(listener), "--config", "python:project.demo.background"]
    os.execve(arguments[0], arguments, place.environment())  # noqa: S606 - needs no shell
