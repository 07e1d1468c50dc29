"""The OpenAPI description, and that the API is as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from django.core.management import call_command
from django.urls import path
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import DictField, ListField, ListSerializer, Serializer
from rest_framework.test import APIClient

from limits_app import services
from limits_app.api import live_serializers as live
from limits_app.api import serializers
from limits_app.api.base import ApiView
from limits_app.api.serializers import (
    EndpointSerializer,
    EntitySerializer,
    PolicySerializer,
    PoolSerializer,
    ResourceSerializer,
)
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.engine.periods import QuotaPeriod
from limits_app.models import Denial
from tests.api import fuzz
from tests.api.site import ROOT, as_user, fill, person


@pytest.mark.django_db
def test_the_description_is_valid_and_without_warnings(tmp_path: Path) -> None:
    file = tmp_path / "schema.yml"
    call_command("spectacular", "--fail-on-warn", "--validate", "--file", str(file))
    described = yaml.safe_load(file.read_text())
    changes = described["paths"][f"{ROOT}policies/{{id}}/"]
    assert set(changes["put"]["responses"]) >= {"200", "400", "401", "403", "404", "409", "412", "415", "428", "429"}
    assert "304" in changes["get"]["responses"]
    assert [one["name"] for one in changes["put"]["parameters"] if one.get("required")] == ["If-Match", "id"]


@pytest.mark.django_db
def test_the_api_describes_itself_alone_where_it_is_mounted() -> None:
    described = as_user(person("ann")).get(f"{ROOT}schema/?format=json").data
    assert described["info"]["title"] == "Limits"
    assert all(path.startswith(ROOT) for path in described["paths"])
    assert len(described["paths"]) > 15


def test_excluded_views_are_left_out() -> None:
    class Hidden(ApiView):
        @extend_schema(exclude=True)
        def get(self, request: Request) -> Response:
            return Response()

    described = SchemaGenerator(patterns=[path("hidden/", Hidden.as_view())]).get_schema(public=True)
    assert described["paths"] == {}


RICH: Final = (
    CallLimit(100, 60, burst=50),
    RateLimit("tpm", 10, 60, soft=True),
    QuotaLimit("monthly", 500, period=QuotaPeriod.MONTH, time_zone="Europe/Berlin"),
    ResourceLimit("slots", 3),
)


@pytest.mark.django_db(transaction=True)
def test_an_answer_has_just_the_fields_that_the_description_has(settings: Settings) -> None:
    settings.LIMITS = {"NEAR_THRESHOLDS": [], "STORES": {"default": {"KIND": "memory"}}}
    fill()
    root = person("root", is_superuser=True)
    payer = f"user:{root.pk}"
    services.set_resource_limits("resource1", RICH, enforcement="shadow", shared=["call_count"])
    services.set_entity_limits(payer, RICH, resource="resource1")
    services.set_system_limits([CallLimit(1000, 60)])
    now = timezone.now()
    Denial.objects.create(minute=now, resource="resource1", key="tpm", first=now, last=now)
    asked = f"?resource=resource1&entity={payer}"
    views = {
        f"status/{asked}": live.StatusSerializer(),
        "status/?resource=resource1": live.StatusSerializer(),
        f"explain/{asked}&requested=tpm:20": live.ExplanationSerializer(),
        f"explain/{asked}&requested=slots:4": live.ExplanationSerializer(),
        "usage/": live.UseSerializer(),
        "spend/": live.SpendSerializer(),
        "denials/": live.DenialSerializer(),
        "me/": live.MineSerializer(),
        "audit-events/": serializers.AuditEventSerializer(),
        "policies/": PolicySerializer(),
        "pools/": PoolSerializer(),
        "resources/": ResourceSerializer(),
        "entities/": EntitySerializer(),
        "endpoints/": EndpointSerializer(),
    }
    seen: set[str] = set()
    for address, serializer in views.items():
        told = as_user(root).get(f"{ROOT}{address}").json()
        for answer in told.get("results", [told]):
            assert not [*differences(serializer, answer, address)]
            seen |= set(fields_in(answer))
    assert {"burst", "holders", "period", "time_zone", "overdrawn", "shared", "cooling_seconds"} <= seen


def differences(field: Any, value: Any, where: str) -> Iterator[str]:
    """Where a value has other fields than its serializer has, or than it must have."""
    if isinstance(field, ListSerializer | ListField):
        for one in value or ():
            yield from differences(field.child, one, where)
    elif isinstance(field, DictField):
        for name, one in (value or {}).items():
            yield from differences(field.child, one, f"{where} {name}")
    elif isinstance(field, Serializer) and value is not None:
        needed = {name for name, one in field.fields.items() if one.required or one.read_only}
        yield from (f"{where}: {name}" for name in (value.keys() - field.fields.keys()) | (needed - value.keys()))
        for name in value.keys() & field.fields.keys():
            yield from differences(field.fields[name], value[name], f"{where} {name}")


def fields_in(value: Any) -> Iterator[str]:
    """The names of all fields, whatever they are in."""
    for name, one in value.items() if isinstance(value, dict) else ():
        yield name
        yield from fields_in(one)
    for one in value if isinstance(value, list) else ():
        yield from fields_in(one)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.django_db(transaction=True)
def test_whatever_is_asked_the_answer_is_one_that_the_description_has(settings: Settings) -> None:
    """`python -m tests.api.fuzz --requests 10000` asks more."""
    fuzz.prepare()
    answered = fuzz.fuzz(200)
    assert answered.total() >= 200
    assert {"GET 200", "POST 400", "PATCH 200"} <= answered.keys()


@pytest.mark.django_db
def test_the_description_is_refused_as_all_else_is() -> None:
    where = f"{ROOT}schema/"
    for answer in (APIClient().get(where), as_user(person("ann")).post(where)):
        assert answer.status_code in {401, 403, 405}
        assert answer["Content-Type"] == "application/problem+json"
        assert json.loads(answer.content)["status"] == answer.status_code
    services.set_resource_limits("limits_app.api", [CallLimit(2, 60)])
    caller = as_user(person("bob"))
    assert [caller.get(where).status_code for _ in range(3)] == [200, 200, 429]
