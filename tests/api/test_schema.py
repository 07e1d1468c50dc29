"""The OpenAPI description, and that the API is as it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from django.core.management import call_command
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response

from limits_app.api.views.base import ApiView
from tests.api import fuzz
from tests.api.site import ROOT, as_user, person


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


def test_what_a_view_leaves_out_is_left_out() -> None:
    class Hidden(ApiView):
        @extend_schema(exclude=True)
        def get(self, request: Request) -> Response:
            return Response()

    described = SchemaGenerator(patterns=[path("hidden/", Hidden.as_view())]).get_schema(public=True)
    assert described["paths"] == {}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_whatever_is_asked_the_answer_is_one_that_the_description_has(settings: Settings) -> None:
    """`python -m tests.api.fuzz --requests 10000` asks more."""
    fuzz.prepare()
    answered = fuzz.fuzz(200)
    assert answered.total() >= 200
    assert {"GET 200", "POST 400", "PATCH 200"} <= answered.keys()
