"""The demo from outside: what it prints, how it ends, and that nothing of it stays."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from project.demo.administrator import Administrator
from project.demo.browser import Browser
from project.demo.client import Client
from project.demo.place import ROOT
from project.demo.report import BAR_MS
from project.demo.server import Address
from project.demo.traffic import ADMITTED, REFUSED
from project.demo.visitors import VISITORS

pytestmark = [pytest.mark.slow, pytest.mark.product]

SECONDS = 120
"""Longer than any demo may take, also where the machine has other things to do."""


@contextmanager
def demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo with a directory for everything temporary, and end it at the end of the block at the latest."""
    process = subprocess.Popen(
        [sys.executable, "-m", "project.demo", *options],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def address_in(process: subprocess.Popen[str]) -> Address:
    """The first address that a demo prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://(127\.0\.0\.1):(\d+)/", line):
            return Address(match[1], int(match[2]))
    raise AssertionError("the demo printed no address")


def nobody_listens(address: Address) -> bool:
    with socket.socket() as visitor:
        return visitor.connect_ex((address.host, address.port)) != 0


@pytest.mark.alone
def test_the_demo_is_exact_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    for visitor in VISITORS:
        figures = f"{visitor.sends} +{visitor.calls} +{visitor.calls} +{visitor.sends - visitor.calls}"
        assert re.search(rf"^  {visitor.name} +{visitor.limit} +{figures}$", output, re.MULTILINE)
    assert len(re.findall(r"^  cedar: .* request 1 +[\d.]+  (\d+) of \1$", output, re.MULTILINE)) == 4
    assert re.search(r"^  cedar +25 more than the \d+ used +50 +25 +25 +25$", output, re.MULTILINE)
    assert "permits released: 1 (expected: 1)" in output
    (back_ms,) = re.findall(r"after: (\d+) ms", output)
    assert int(back_ms) <= BAR_MS
    assert "log in at http://127.0.0.1:8000/admin/ as admin, password admin" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.release
def test_two_hundred_changes_count_on_the_first_request_in_every_process(tmp_path: Path) -> None:
    with demo(tmp_path, "--changes", "200") as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert output.endswith("200 of 200 changes applied to the first request after them in every process.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)])
def test_an_interrupted_demo_ends_all_that_it_started(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        address = address_in(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert errors == "The demo was interrupted, and its processes were stopped.\n"
    assert nobody_listens(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.release
def test_the_served_demo_has_seeded_data_that_survives_a_restart(tmp_path: Path) -> None:
    options = ("--serve", "--port", "0", "--data", str(tmp_path / "data"))
    with demo(tmp_path, *options) as process:
        address = address_in(process)
        assert "Send requests until you are rate limited" in Client(address).ask("/").text
        add_alert_rule(address)
        visitor = Browser(address)
        visitor.sign_in("/login/", "amber", "amber")
        statuses = [visitor.client.ask("/api/ping/").status for _ in range(31)]
        assert statuses == [ADMITTED] * 30 + [REFUSED]
        Administrator.logged_in(address, "admin", "admin").add_resource("kept", "It is there after a restart.")
        wait_for_usage(address, "In total, 30 of requests were allowed")
        wait_for_mail(address, "at least 80 %")
    assert nobody_listens(address)
    with demo(tmp_path, *options) as process:
        visitor = Browser(address_in(process))
        visitor.sign_in("/admin/login/?next=/admin/", "admin", "admin")
        assert "It is there after a restart." in visitor.client.ask("/admin/limits_app/resource/").text


def add_alert_rule(address: Address) -> None:
    """Ask for a mail when any client has used 80 % of a limit."""
    admin = Browser(address)
    admin.sign_in("/admin/login/?next=/admin/", "admin", "admin")
    form = admin.form("/admin/limits_app/alertrule/add/", "alertrule_form")
    form.fill(name="near", kind="threshold", percent="80", target="ops@example.org")
    admin.send(form)


def wait_for_mail(address: Address, expected: str) -> None:
    """Read the page of mails until it has the text: alerts are sent every few seconds."""
    admin, until, text = Browser(address), monotonic() + SECONDS, ""
    admin.sign_in("/admin/login/?next=/admin/", "admin", "admin")
    while expected not in text:
        assert monotonic() < until, text
        text = admin.client.ask("/mail/").text


def wait_for_usage(address: Address, expected: str) -> None:
    """Read the Usage page until it has the text: the counts of both processes are stored once a minute."""
    admin, until, text = Browser(address), monotonic() + SECONDS, ""
    admin.sign_in("/admin/login/?next=/admin/", "admin", "admin")
    while expected not in text:
        assert monotonic() < until, text
        text = admin.client.ask("/admin/limits_app/usagesnapshot/?resource=api&key=call_count&span=today").text


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(tmp_path, "--serve", "--port", str(port), "--data", str(tmp_path)) as process:
            _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert errors == (
        f"The demo failed: port {port} cannot be used (Address already in use):"
        ' use another one, such as make run ARGS="--port 8001"\n'
    )
