"""Packages that nothing else imports: each is imported by itself, and a site that uses none of them loads none."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import dedent

import pytest

from tests.docs.pages import DOCS, ROOT, rows

OPTIONAL = tuple(f"limits_app.{row[0].strip('`')}" for row in rows(DOCS / "architecture.md", "Optional packages"))
SITE = """
    import json, sys
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import include, path
    apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
    settings.configure(
        SECRET_KEY="k" * 50, ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "rest_framework", "import_export", "limits_app"],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        LIMITS={"STORES": {"default": {"KIND": "memory"}}, "METRICS": ["prometheus", "opentelemetry"], "ALERTS": True},
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "limits_app.integrations.middleware.LimitsMiddleware",
        ],
    )
    import django
    django.setup()
    from django.contrib import admin
    from django.core.checks import run_checks
    from django.core.management import call_command
    from django.test import Client
    from limits_app import limited, limits, tasks
    urlpatterns = [
        path("", limited("api", default_limits="1/hour:sliding_window")(lambda request: HttpResponse("x"))),
        path("admin/", admin.site.urls), path("own/", include("limits_app.urls")),
        path("limits/", include("limits_app.api.urls")),
    ]
    call_command("migrate", verbosity=0)
    run_checks()
    limits.set_resource_limits("other", "100/min")
    statuses = [Client().get(address).status_code for address in ("/", "/", "/admin/", "/limits/policies/")]
    call_command("limits", "status", "api", stdout=sys.stderr)
    print(json.dumps([statuses, sorted(sys.modules)]))
"""

SETUP = SITE.partition("    from django.contrib import admin")[0] + "    print(json.dumps(sorted(sys.modules)))"
ON_USE = (
    "limits_app.admin.pages.",
    "limits_app.alerts.delivery",
    "limits_app.checks.",
    "limits_app.services.doctor",
    "limits_app.services.limits_file",
    "limits_app.services.simulation",
    "limits_app.testing",
    "cryptography",
    "lmdb",
    "smtplib",
    "urllib.request",
)
"""What a process imports when it uses it, and not when Django is set up."""


def output_of(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", dedent(code)], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_site_loads_no_package_that_it_does_not_use() -> None:
    statuses, modules = json.loads(output_of(SITE))
    assert statuses[:2] == [200, 429]
    assert {"limits_app.api.urls", "limits_app.tasks", "limits_app.admin", "limits_app.metrics.collection"} <= {
        *modules
    }
    assert [name for name in modules if name.startswith((*OPTIONAL, "pytest", "hypothesis", "httpx"))] == []


def test_setting_up_django_imports_nothing_that_only_some_processes_use() -> None:
    modules = json.loads(output_of(SETUP.replace('"METRICS": ["prometheus", "opentelemetry"], "ALERTS": True', "")))
    assert "limits_app.admin.pages" in modules
    assert [name for name in modules if name.startswith(ON_USE)] == []


@pytest.mark.parametrize("package", OPTIONAL)
def test_an_optional_package_is_imported_separately_and_documented(package: str) -> None:
    others = [name for name in OPTIONAL if name != package]
    code = f"""
        import json, sys
        import {package}
        print(json.dumps([{package}.__doc__, sorted(sys.modules)]))
    """
    text, modules = json.loads(output_of(code))
    assert text.startswith("Optional: ")
    assert [name for name in modules if name.startswith((*others, "limits_app.models", "limits_app.services"))] == []
