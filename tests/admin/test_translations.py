"""Translations: German and Chinese, whole, with the same places for values, and compiled."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from limits_app import limits
from limits_app.admin.audit_words import field_in_words, value_in_words
from limits_app.core.limits import CallLimit
from limits_app.models import AuditEvent, Policy
from tests.admin.browsing import act, address, changelist

LANGUAGES = ("de", "zh_Hans")
CATALOGUES = Path(__file__).resolve().parents[2] / "limits_app" / "locale"
PLACES = re.compile(r"%\(\w+\)[sd]|%%|</?\w+>")


def entries(language: str) -> Iterator[dict[str, str]]:
    """What a catalogue says, entry by entry, without its head."""
    text = (CATALOGUES / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    for block in text.split("\n\n")[1:]:
        entry: dict[str, str] = {"flags": ""}
        name = "flags"
        for line in block.strip().splitlines():
            if line.startswith("#"):
                entry["flags"] += line
            elif line.startswith('"'):
                entry[name] += ast.literal_eval(line)
            else:
                name, said = line.split(" ", 1)
                entry[name] = ast.literal_eval(said)
        if "msgid" in entry:
            yield entry


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_with_the_same_places_for_values(language: str) -> None:
    found = list(entries(language))
    assert len(found) > 400
    for entry in found:
        assert "fuzzy" not in entry["flags"], entry
        said = [text for name, text in entry.items() if name.startswith("msgstr")]
        assert all(said), f"{entry['msgid']!r} has no translation"
        for text in said:
            assert sorted(PLACES.findall(text)) == sorted(PLACES.findall(entry["msgid"])), entry


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_says_the_same(language: str) -> None:
    with (CATALOGUES / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in entries(language):
        if "msgid_plural" not in entry:
            assert compiled.gettext(entry["msgid"]) == entry["msgstr"], "compile it: python -m tests.admin.messages"
        else:
            many = compiled.ngettext(entry["msgid"], entry["msgid_plural"], 7)
            assert many == entry[max(name for name in entry if name.startswith("msgstr"))]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "de",
            [
                "Richtlinien",
                "Jetzt genutzt",
                "0 von 10 genutzt, 10 übrig",
                "Aufstockung gewähren",
                "Im Schatten erproben",
            ],
        ),
        ("zh-hans", ["策略", "当前用量", "剩余 10", "授予临时提额", "影子试行"]),
    ],
)
def test_lists_and_actions_speak_the_language_of_the_site(
    code: str, words: list[str], admin_client: Client, settings: Any
) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)], shared=["call_count"])
    settings.LANGUAGE_CODE = code
    with translation.override(code):
        page = changelist(admin_client, "policy").content.decode()
        asked = act(admin_client, "shadow_policies", Policy.objects.get()).content.decode()
    for word in words:
        assert word in page
    assert words[-1] in asked


def test_the_audit_log_is_read_in_the_language_of_the_site(admin_client: Client, settings: Any) -> None:
    made = limits.set_resource_limits("api", [CallLimit(10, 60)])
    made.reason = "because"
    made.save()
    limits.set_resource_limits("api", [CallLimit(20, 60)])
    [changed, written] = AuditEvent.objects.filter(object_type="policy", verb="update").order_by("-number")
    AuditEvent.objects.create(verb="reset", source="cron", object_type="state", after={"resource": "api"})
    settings.LANGUAGE_CODE = "de"
    with translation.override("de"):
        page = changelist(admin_client, "auditevent").content.decode()
        shown = [
            admin_client.get(address("auditevent_change", event.pk)).content.decode() for event in (changed, written)
        ]
    for kind, source in (("Richtlinie", "Funktion der App"), ("Genutztes", "cron")):
        assert f'<td class="field-kind">{kind}</td>' in page
        assert f'<td class="field-way">{source}</td>' in page
        assert len(re.findall(f">\\s*(?:{kind}|{source})\\s*</a>", page)) == 2  # what the list can be filtered by
    assert '<th scope="row">limits call_count: Kapazität</th>' in shown[0]
    assert '<th scope="row">Grund</th>' in shown[1]
    assert ">policy<" not in page + shown[0] + shown[1]


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        ("policy", "rollout_percent", "rollout (%)"),
        ("pool", "members eu: limits tpm: window_seconds", "members eu: limits tpm: window (s)"),
        ("policy", "limits a: b", "limits a: b"),
        ("policy", "colour", "colour"),
        ("state", "resource", "resource"),
        ("gone", "parts a: b", "parts a: b"),
    ],
)
def test_a_field_is_named_as_its_form_does_if_there_still_is_one(kind: str, field: str, words: str) -> None:
    assert field_in_words(kind, field) == words


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("policy", "effect", "unlimited", "unbegrenzt"),
        ("policy", "effect", "gone", "gone"),
        ("policy", "reason", "limits", "limits"),
        ("policy", "extends", True, "Ja"),
        ("policy", "rollout_percent", 50, "50"),
        ("policy", "valid_until", None, "-"),
        ("pool", "members eu: limits tpm: period", "day", "Tag"),
        ("pool", "members eu: config", {"region": "eu"}, '{"region": "eu"}'),
        ("gone", "effect", "limits", "limits"),
    ],
)
def test_a_value_that_can_be_chosen_is_called_as_its_form_does(kind: str, field: str, value: Any, words: str) -> None:
    with translation.override("de"):
        assert value_in_words(kind, field, value) == words
