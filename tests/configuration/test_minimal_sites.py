"""Sites without apps or templates that most sites have: a check with a hint, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SITE = """
    import json, sys
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path
    apps, templates = json.loads(sys.argv[1])
    settings.configure(
        SECRET_KEY="k" * 50, ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[*apps, "limits_app"], TEMPLATES=templates, LIMITS={"STORES": {"default": {"KIND": "memory"}}},
        MIDDLEWARE=["limits_app.integrations.middleware.LimitsMiddleware"],
    )
    import django
    django.setup()
    from django.core.checks import run_checks
    from django.test import Client
    from limits_app import limited
    urlpatterns = [path("", limited("api", default_limits="1/hour:sliding_window")(lambda request: HttpResponse("x")))]
    found = [(one.id, one.hint) for one in run_checks() if str(one.id).startswith("limits_app.")]
    html = {"accept": "text/html"}
    answers = [Client().get("/", headers=html) for _ in range(2)]
    print(json.dumps([found, [(one.status_code, one["Content-Type"]) for one in answers]]))
"""
AUTH = ["django.contrib.contenttypes", "django.contrib.auth"]
ENGINE = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
PROBLEM, PAGE = "application/problem+json", "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("apps", "templates", "reported", "kind"),
    [
        pytest.param([], [ENGINE], ["E075"], PAGE, id="no_apps"),
        pytest.param(["django.contrib.contenttypes"], [ENGINE], ["E075"], PAGE, id="no_auth"),
        pytest.param(AUTH, [], ["W075"], PROBLEM, id="no_templates"),
        pytest.param(AUTH, [ENGINE | {"APP_DIRS": False}], ["W075"], PROBLEM, id="no_templates_of_apps"),
        pytest.param([], [], ["E075", "W075"], PROBLEM, id="nothing"),
        pytest.param(AUTH, [ENGINE], [], PAGE, id="enough"),
    ],
)
def test_missing_parts_of_a_site_are_reported(apps: Any, templates: Any, reported: list[str], kind: str) -> None:
    command = [sys.executable, "-c", dedent(SITE), json.dumps([apps, templates])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    found, answers = json.loads(done.stdout)
    assert [name.removeprefix("limits_app.") for name, _ in found] == reported
    assert all(hint for _, hint in found)
    assert answers == [[200, PAGE], [429, kind]]


def test_a_misspelt_setting_is_a_check_and_no_traceback(tmp_path: Path) -> None:
    """Importing the app with its admin and its API reads no settings, so that the checks can report them."""
    (tmp_path / "misspelt.py").write_text("from project.settings import *\nLIMITS = {'EXEMPT': {'networks': []}}\n")
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "misspelt", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "manage.py", "check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "(limits_app.E059) LIMITS['EXEMPT']" in done.stderr
