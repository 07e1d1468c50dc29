"""Sends what a fuzzer makes of the schema to the REST API: `python -m tests.api.fuzz --requests 10000`.

Every response must be one that the schema describes, and none a 500. Each request finds the same rows, since what it
changes is rolled back.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


def fuzz(requests: int, seed: int = 0) -> Counter[str]:
    """Send about so many requests, the same number to each operation; gives how often each status was answered.

    Fails with the request that shows what is wrong, as small as it was found.
    """
    from hypothesis import HealthCheck, Phase, given, settings, strategies
    from hypothesis import seed as seeded

    answered: Counter[str] = Counter()
    operations = [found.ok() for found in _schema().get_all_operations()]
    for number, operation in enumerate(operations):
        share = requests // len(operations) + (number < requests % len(operations))

        def send(case: Any, choices: Any) -> None:
            status = _send(case, choices)
            answered[f"{case.operation.method.upper()} {status}"] += 1

        kinds = strategies.one_of(*[operation.as_strategy(generation_mode=mode) for mode in _modes()])
        limits = settings(
            max_examples=share,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        given(case=kinds, choices=strategies.randoms(use_true_random=False))(seeded(seed)(limits(send)))()
    return answered


def _modes() -> Any:
    from schemathesis import GenerationMode

    return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def _schema() -> Any:
    import schemathesis

    from project.wsgi import application

    headers = {"Authorization": "Basic " + b64encode(b"root:root").decode()}
    schema = schemathesis.openapi.from_wsgi("/limits/api/v1/schema/?format=json", application, headers=headers)
    schema.config.headers = headers
    return schema


def _send(case: Any, choices: Any) -> int:
    """Send a request, half of them about a row that there is, in the version that it has."""
    from django.db import transaction
    from schemathesis import checks

    if "id" in case.path_parameters and choices.random() < 0.7:
        case.path_parameters["id"] = _some_row(case, choices)
    if choices.random() < 0.7 and case.method in {"PUT", "PATCH", "DELETE"}:
        case.headers["If-Match"] = "*"
    with transaction.atomic():
        response = case.call()
        transaction.set_rollback(True)
    case.validate_response(response, checks=[getattr(checks, name) for name in CHECKS])
    return int(response.status_code)


def _some_row(case: Any, choices: Any) -> int:
    from django.urls import resolve

    model = resolve(case.operation.path.replace("{id}", "1")).func.cls.queryset.model  # type: ignore[attr-defined]
    return int(choices.choice([*model.objects.order_by("pk").values_list("pk", flat=True)]))


@contextmanager
def site() -> Iterator[None]:
    """A site of its own: a database and a store in memory, with some of everything in them."""
    import django
    from django.test.utils import override_settings, setup_databases, teardown_databases

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    hashers = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    with override_settings(LIMITS={"STORES": {"default": {"KIND": "memory"}}}, PASSWORD_HASHERS=hashers):
        made = setup_databases(verbosity=0, interactive=False)
        try:
            prepare()
            yield
        finally:
            teardown_databases(made, verbosity=0)


def prepare() -> None:
    """Somebody who may do everything, as often as they like, and rows to do it to."""
    from limits_app import services
    from tests.api.site import fill, person

    person("root", is_superuser=True)
    fill()
    services.set_resource_limits("limits_app.api", [], effect="unlimited")


def main(arguments: list[str]) -> None:
    """Send the requests, and say what was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    started = time.monotonic()
    with site():
        answered = fuzz(asked.requests, asked.seed)
    for what, times in sorted(answered.items()):
        print(f"{what}: {times}")  # noqa: T201 - the report of a command
    print(f"{answered.total()} requests in {time.monotonic() - started:.0f} s")  # noqa: T201 - likewise


if __name__ == "__main__":
    main(sys.argv[1:])
