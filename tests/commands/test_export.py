"""Exporting limits as a file: the text, its order, and how much memory it takes."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import yaml

from benchmarks.site.copies import copy_row
from limits_app import CallLimit, RateLimit, limits
from limits_app.models import Entity
from limits_app.services import limits_file
from tests.commands.running import run

pytestmark = pytest.mark.django_db


def _clients(count: int) -> None:
    """Add clients, the last ones first."""
    first = limits.set_entity("tenant:0")
    copy_row(first, count, identifier=f"'user:' || ({10**6 * (1 + Entity.objects.count())} - number)")


def test_an_empty_site_is_a_version_and_a_name() -> None:
    assert "".join(limits_file.export()) == "version: 1\nname: limits\n"
    assert json.loads("".join(limits_file.export_json())) == {"version": 1, "name": "limits"}


def test_yaml_and_json_have_the_same_objects_in_the_same_order() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_entity("tenant:\N{SNOWMAN} \x1b", name='a "b"\nc: d', metadata={"x": [1, {"y": None}], "a": "€"})
    limits.set_entity_limits("tenant:a", [RateLimit("tokens", 5, 60), CallLimit(1, 1)], resource="api")
    limits.set_entity("user:1", parent="tenant:a")
    text, packed = ("".join(pieces) for pieces in (limits_file.export(), limits_file.export_json()))
    document = yaml.safe_load(text)
    assert document == json.loads(packed)
    assert [*document["entities"]] == [*json.loads(packed)["entities"]] == sorted(document["entities"])
    assert text == yaml.dump(document, sort_keys=False, allow_unicode=True, width=120)
    assert packed.count("\n") == json.dumps(document, indent=2).count("\n")
    assert "\x1b" not in packed


@pytest.mark.parametrize("count", [30, 10_500])
def test_objects_are_in_the_order_of_their_names(count: int) -> None:
    _clients(count)
    names = [*json.loads("".join(limits_file.export_json()))["entities"]]
    assert names == sorted(Entity.objects.values_list("identifier", flat=True))


def test_memory_does_not_grow_with_the_number_of_objects() -> None:
    peaks = []
    for count in (10_500, 21_000):
        _clients(10_500)
        tracemalloc.start()
        written = sum(map(len, limits_file.export()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert written > 15 * count
    assert peaks[1] < 1.2 * peaks[0]


def test_the_command_writes_the_same_text() -> None:
    _clients(3)
    assert run("export").out == "".join(limits_file.export())
    assert run("export --format json").out == "".join(limits_file.export_json()) + "\n"
