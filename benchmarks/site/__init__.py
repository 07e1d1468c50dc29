"""A site that is served and measured in processes of its own, each with its own settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

__all__ = [
    "MIDDLEWARE",
    "PATH",
    "PROCESS_HEADER",
    "RESOURCE",
    "ROOT",
    "UNMATCHED_PATH",
    "USER_HEADER",
    "Site",
    "site_of_environment",
]

ROOT: Final = Path(__file__).resolve().parents[2]
MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"
RESOURCE: Final = "pages"
PATH: Final = "/page/50/"
"""The path of the view, which one URL rule matches."""
UNMATCHED_PATH: Final = "/other/"
"""The path of the same view that no URL rule matches."""
USER_HEADER: Final = "X-User"
"""Names the user of a request by primary key, at the same cost for all contenders: neither session nor query."""
PROCESS_HEADER: Final = "X-Process"
"""Names the process that made a response."""
_VARIABLE: Final = "LIMITS_BENCHMARK_SITE"


@dataclass(frozen=True, slots=True)
class Site:
    """What distinguishes one site from another.

    `view` is a name in `benchmarks.site.urls`; the others are the settings of Django with the same names.
    """

    database: Mapping[str, Any]
    view: str = "plain"
    middleware: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def on_sqlite(cls) -> Iterator[Site]:
        """A site with 100 URL rules, in a database file that is deleted afterwards."""
        with TemporaryDirectory(prefix="benchmark-site-") as directory:
            database = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(directory) / "site.sqlite3"),
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", "timeout": 20},
            }
            site = cls(database, limits={"STATE_DIR": str(Path(directory) / "state")})
            site.run("prepare")
            yield site

    def limited(self, store: Mapping[str, Any] | None = None, **fields: Any) -> Site:
        """The site with the middleware, and a store other than the default one."""
        limits = self.limits if store is None else {**self.limits, "STORES": {"default": store}}
        return replace(self, **{"middleware": (MIDDLEWARE,), "limits": limits, **fields})

    def environment(self) -> dict[str, str]:
        """The environment of a process of the site."""
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.site.settings", _VARIABLE: json.dumps(asdict(self))}
        return os.environ | settings

    def run(self, program: str, *arguments: object, timeout: float = 300) -> Any:
        """Run one of `benchmarks.site.programs` in a process of its own, and return its result."""
        command = [sys.executable, "-m", "benchmarks.site.programs", program, *map(str, arguments)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=ROOT, env=self.environment(), timeout=timeout
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])


def site_of_environment() -> Site:
    """The site of this process."""
    return Site(**json.loads(os.environ[_VARIABLE]))
