"""One process of a site: does what each line of its input says, and answers with a line.

`get PATH` asks the site and gives the status; `allow COUNT` and `enable 0|1` change the configuration.
"""

from __future__ import annotations

import os
import sys

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
django.setup()

from django.core.management import call_command  # noqa: E402 - only once Django is set up
from django.test import Client  # noqa: E402 - the same

from limits_app import services  # noqa: E402 - the same
from limits_app.engine.limits import CallLimit  # noqa: E402 - the same
from limits_app.models import Endpoint, Resource  # noqa: E402 - the same

CLIENT = Client()


def do(verb: str, argument: str) -> object:
    """Follow one line."""
    match verb:
        case "get":
            return CLIENT.get(argument).status_code
        case "allow":
            services.set_resource_limits("api", [CallLimit(int(argument), 86_400)])
        case "limit":
            api = Resource.objects.get(name="api")
            Endpoint.objects.create(name="ping", path=argument, resource=api)
        case "enable":
            Endpoint.objects.update(enabled=argument == "1")
        case "migrate":
            call_command("migrate", verbosity=0)
    return "done"


for line in sys.stdin:
    sys.stdout.write(f"{do(*line.split())}\n")
    sys.stdout.flush()
