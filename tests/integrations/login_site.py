"""A site with django-allauth, whose users log in by name or e-mail address; prints what its log-in form answers."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings

BACKENDS = ["limits_app.integrations.login.LoginLimitBackend", "django.contrib.auth.backends.ModelBackend"]


def main() -> None:
    """Print the status of each answer, and what is left for the account and the address."""
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="only for this site",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "allauth",
            "allauth.account",
            "limits_app",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "allauth.account.middleware.AccountMiddleware",
            "limits_app.integrations.middleware.LimitsMiddleware",
        ],
        AUTHENTICATION_BACKENDS=[*BACKENDS, "allauth.account.auth_backends.AuthenticationBackend"],
        ACCOUNT_LOGIN_METHODS={"email", "username"},
        ACCOUNT_RATE_LIMITS=False,
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
            }
        ],
        ROOT_URLCONF="allauth.urls",
        LOGIN_REDIRECT_URL="/",
        LIMITS={"STORES": {"default": {"KIND": "memory"}}},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    sys.stdout.write(json.dumps(_answers()))


def _answers() -> dict[str, object]:
    from allauth.account.models import EmailAddress
    from django.contrib.auth.models import User
    from django.test import Client

    from limits_app import limits

    user = User.objects.create_user("ann", email="ann@example.org", password="right")
    for email in ("ann@example.org", "ann@example.net"):
        EmailAddress.objects.create(user=user, email=email, verified=True, primary=email.endswith("org"))
    limits.set_resource_limits("login.account", "calls=6/h")
    limits.set_resource_limits("login.account-address", "calls=6/h")

    def log_in(name: str, password: str) -> int:
        return Client().post("/login/", {"login": name, "password": password}).status_code

    names = ["ann", "ann@example.org", "ANN@example.org", "ann@example.net", " Ann", "ann", "ann@example.net"]
    answers: dict[str, object] = {"right": [log_in(name, "right") for name in names * 2]}
    answers["used_by_right"] = _used("login.account", f"account:{user.pk}") + _used("login.address", "ip:127.0.0.1")
    answers["wrong"] = [log_in(name, "wrong") for name in names]
    answers["used_by_wrong"] = [_used("login.account", f"account:{user.pk}"), _used("login.address", "ip:127.0.0.1")]
    answers["locked"] = log_in("ann", "right")
    return answers


def _used(resource: str, entity: str) -> Any:
    from limits_app import limits

    state = limits.status(resource, entity=entity).limits
    return round(state["call_count"]["used"]) if "call_count" in state else 0


if __name__ == "__main__":
    main()
