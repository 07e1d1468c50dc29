"""The store that a resource names: checked when it is set, and looked at by those who look after a site."""

from __future__ import annotations

import json

import jsonschema
import pytest
from django.core.exceptions import ValidationError
from django.db import ProgrammingError, connection
from pytest_django import Settings

from limits_app import checks, limits
from limits_app.audit import revert
from limits_app.engine.errors import CannotRevert
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Pool, Resource
from limits_app.services import limits_file
from limits_app.services.doctor import diagnose
from tests.commands.running import run

pytestmark = pytest.mark.django_db(transaction=True)

ONE = {"default": {"KIND": "memory"}}
SEVERAL = ONE | {"scratch": {"KIND": "memory"}}
FILE = "version: 1\nname: limits\nresources:\n  api:\n    store: scratch\n  web: {}\n"


@pytest.fixture(autouse=True)
def site(settings: Settings) -> None:
    settings.LIMITS = {"STORES": SEVERAL}


def test_a_resource_names_a_store_of_the_settings_or_none() -> None:
    for alias in ("", "default", "scratch"):
        Resource(name="api", store=alias).full_clean()
    with pytest.raises(ValidationError) as caught:
        Resource(name="api", store="Scratch").full_clean()
    [message] = caught.value.message_dict["store"]
    assert message.startswith("LIMITS['STORES'] has no store 'Scratch': choose one of 'default', 'scratch'")


def test_a_store_that_is_gone_cannot_be_brought_back_by_a_revert(settings: Settings) -> None:
    api = Resource.objects.create(name="api", store="scratch")
    api.store = ""
    api.save()
    event = AuditEvent.objects.latest("number")
    assert (event.before["store"], event.after["store"]) == ("scratch", "")
    settings.LIMITS = {"STORES": ONE}
    with pytest.raises(CannotRevert, match="has no store 'scratch'"):
        revert(event)
    settings.LIMITS = {"STORES": SEVERAL}
    revert(event)
    api.refresh_from_db()
    assert api.store == "scratch"


def test_resources_whose_store_is_gone_are_reported(settings: Settings) -> None:
    Resource.objects.create(name="api", store="scratch")
    Resource.objects.create(name="web")
    assert checks.check_stores(["default"]) == []
    settings.LIMITS = {"STORES": ONE}
    [report] = checks.check_stores(["default"])
    assert report.id == "limits_app.W054"
    assert report.msg == "the resource api uses the store 'scratch', which is not defined in LIMITS['STORES']"
    assert "choose one of 'default'" in str(report.hint)

    def no_column(*args: object) -> None:
        raise ProgrammingError("no such column")

    with connection.execute_wrapper(no_column):
        assert [one.id for one in checks.check_stores(["default"])] == ["limits_app.W073"]


def test_the_doctor_finds_pools_whose_members_are_counted_twice() -> None:
    pool = Pool.objects.create(name="regions")
    api = Resource.objects.create(name="api", pool=pool)
    Resource.objects.create(name="web", pool=pool, store="default")
    assert [one for one in diagnose() if one.id == "limits_app.D018"] == []
    api.store = "scratch"
    api.save()
    [found] = [one for one in diagnose() if one.id == "limits_app.D018"]
    assert found.message == "the pool regions serves resources that are counted in several stores: default, scratch"


def test_a_limits_file_has_the_store_of_resources() -> None:
    content = limits_file.read_content(FILE)
    limits_file.apply(content)
    assert dict(Resource.objects.values_list("name", "store")) == {"api": "scratch", "web": ""}
    assert {step.change for step in limits_file.plan(content).steps} == {limits_file.PlannedChange.UNCHANGED}
    assert "".join(limits_file.export()) == FILE
    schema = limits_file.schema()
    jsonschema.validate({"resources": {"api": {"store": "scratch"}}}, schema)
    with pytest.raises(limits_file.InvalidFile, match=r"line 5.*has no store 'gone'"):
        limits_file.read_content(FILE.replace("scratch", "gone"))


def test_a_command_puts_a_resource_into_a_store() -> None:
    ran = run("resource store api scratch --reason 'counted on all machines' --format json")
    assert ran.code == 0, ran.err
    assert {"store": "scratch"}.items() <= {one["field"]: one["after"] for one in json.loads(ran.out)}.items()
    assert Resource.objects.get().store == "scratch"
    ran = run("resource store api gone")
    assert ran.code != 0
    assert "has no store 'gone'" in ran.err
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    assert "It is counted in the store 'scratch'." in run("explain api").out
    assert run("resource store api ''").code == 0
    assert Resource.objects.get().store == ""
