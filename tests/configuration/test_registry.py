"""The registry of configuration: every model and field is used where it says, or left out with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.db.models import Model

from limits_app.admin.imports_exports import TABLES
from limits_app.api import views
from limits_app.audit.reverting import MODELS
from limits_app.models import REGISTRY, Configuration, Limit, Registered
from limits_app.models.registry import NO_CONFIGURATION, ExchangeFormat
from limits_app.models.snapshots import fields_of, parts_of
from limits_app.services.limits_file import schema

ALL = list(apps.get_app_config("limits_app").get_models())
ENTRIES = [pytest.param(entry, id=entry.model.__name__) for entry in REGISTRY.values()]


def test_every_model_is_configuration_or_has_a_reason() -> None:
    assert {*REGISTRY} | {*NO_CONFIGURATION} == {*ALL}
    assert not {*REGISTRY} & {*NO_CONFIGURATION}
    assert all(NO_CONFIGURATION.values())


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_field_is_written_or_has_a_reason(entry: Registered) -> None:
    names = {field.name for field in entry.model._meta.concrete_fields}
    assert {*entry.fields} | {*entry.unwritten} == names
    assert not {*entry.fields} & {*entry.unwritten}
    assert all(entry.unwritten.values())
    assert {*entry.identity} <= names


@pytest.mark.parametrize("entry", ENTRIES)
def test_rows_that_are_written_together_refer_to_their_row(entry: Registered) -> None:
    if entry.parts:
        assert (entry.parts, entry.owner) in [parts[:2] for parts in parts_of(entry.model)]


def used_by(entry: Registered) -> dict[ExchangeFormat, set[str]]:
    """The fields of a model that each use really has; a use without the model is left out."""
    model, found = entry.model, dict[ExchangeFormat, set[str]]()
    sections = schema()["$defs"]
    if f"{model.__name__}Section" in sections:
        named = {*entry.identity} if len(entry.identity) == 1 else set()
        found[ExchangeFormat.FILE] = {*sections[f"{model.__name__}Section"]["properties"], *named}
    for view in vars(views).values():
        if getattr(getattr(view, "queryset", None), "model", None) is model:
            found[ExchangeFormat.REST] = {*view.serializer_class().fields}
    if model in TABLES:
        found[ExchangeFormat.TABLE] = {*TABLES[model]().fields}
    if issubclass(model, Configuration):
        found[ExchangeFormat.AUDIT] = {field.name for field in fields_of(model)} | {*model.part_of}
    return found


@pytest.mark.parametrize("entry", [one for one in ENTRIES if one.values[0].model is not Limit])
def test_every_use_has_the_written_fields_or_a_reason(entry: Any) -> None:
    found = used_by(entry)
    is_part = entry.fields and not entry.section
    expected = {*ExchangeFormat} - {*entry.left_out} - ({ExchangeFormat.REST} if is_part else set())
    assert {*found} == expected
    for use, names in found.items():
        assert {*entry.fields} <= names, use
        assert all(entry.left_out.values())


def test_the_audit_log_has_every_field_but_automatic_ones() -> None:
    for model in MODELS.values():
        entry = REGISTRY[model]
        automatic = {"id", "created_at", "updated_at"}
        assert {field.name for field in fields_of(model)} == {*entry.fields, *entry.unwritten} - automatic


@pytest.mark.parametrize("model", [Limit])
def test_limits_are_written_as_text_with_the_row_that_has_them(model: type[Model]) -> None:
    owners = [entry.owner for entry in REGISTRY.values() if entry.parts == "limits"]
    assert sorted(owners) == ["member", "policy"]
    assert {*owners} <= {*REGISTRY[model].unwritten}
