"""Translations: German and Chinese are complete, keep the values of each text, and are compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from limits_app import limits
from limits_app.engine.limits import CallLimit
from limits_app.models import Policy
from tests.admin.browsing import act, changelist
from tests.admin.messages import CATALOGUES, compiled, read, template, texts, updated

VALUES = re.compile(r"%\(\w+\)[sd]|%%|%s|</?\w+>")
ADVICE = "run `.venv/bin/python -m tests.admin.messages`, translate what is new, and run it again"


def test_catalogues_are_german_and_chinese() -> None:
    assert [path.parents[1].name for path in CATALOGUES] == ["de", "zh_Hans"]


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parents[1].name)
def test_every_text_is_translated_and_has_the_same_values(path: Path) -> None:
    catalog = read(path)
    found = {message.id: message for message in catalog if message.id}
    assert set(found) == set(texts()), ADVICE
    for message in found.values():
        ids = message.id if isinstance(message.id, tuple) else (message.id,)
        translated = message.string if isinstance(message.string, tuple) else (message.string,)
        assert not message.fuzzy
        assert all(translated), f"{ids} is not translated: {ADVICE}"
        for text in translated:
            assert sorted(VALUES.findall(text)) == sorted(VALUES.findall(ids[-1])), ids


def test_the_command_that_updates_the_catalogues_changes_nothing() -> None:
    found = template()
    for path in CATALOGUES:
        assert updated(path, found) == path.read_bytes(), ADVICE
        assert compiled(path) == path.with_suffix(".mo").read_bytes(), ADVICE


@pytest.mark.parametrize(
    ("language", "words", "title"),
    [
        ("de", ["Richtlinien", "Aufstockung gewähren", "Auf Probebetrieb stellen"], "Ausgewählte Zeilen"),
        ("zh-hans", ["策略", "授予临时提额", "设为试运行"], "所选行"),
    ],
)
def test_lists_and_actions_are_in_the_language_of_the_site(
    language: str, words: list[str], title: str, admin_client: Client, settings: Any
) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)], shared=["call_count"])
    settings.LANGUAGE_CODE = language
    with translation.override(language):
        page = changelist(admin_client, "policy").content.decode()
        confirmation = act(admin_client, "shadow_policies", Policy.objects.get()).content.decode()
    for word in words:
        assert word in page
    assert title in confirmation
