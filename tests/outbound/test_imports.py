"""What importing the room brings along, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import limits_app.outbound


def test_it_needs_neither_django_nor_a_store_nor_anything_to_watch_with() -> None:
    code = "import limits_app.outbound, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    foreign = ("django", "lmdb", "redis", "celery", "prometheus_client", "opentelemetry", "limits_app.stores")
    assert [name for name in loaded if name.startswith(foreign)] == []


def test_every_public_name_is_there() -> None:
    assert all(hasattr(limits_app.outbound, name) for name in limits_app.outbound.__all__)
