"""Packages that a server needs, installed where they are missing and that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["install"]

_APT = ["apt-get", "--yes", "--option", "DPkg::Lock::Timeout=120", "--no-install-recommends"]


def install(package: str) -> None:
    """Try to install a Debian package, without starting what it brings; whoever needs it looks whether it is there."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    import fcntl

    # In runlevel 1 a package starts no service of its own.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with (Path(tempfile.gettempdir()) / "limits-tests-install.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for commands in ([["install", package]], [["update"], ["install", package]]):
            done = [
                subprocess.run([*_APT, *command], check=False, capture_output=True, env=environment).returncode
                for command in commands
            ]
            if done[-1] == 0:
                return
