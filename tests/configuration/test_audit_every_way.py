"""Hundreds of random changes by every way in are as many events, and what is changed past them is found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from limits_app import CallLimit, limits
from limits_app.audit import revert, unrecorded, verify
from limits_app.models import AuditEvent, Endpoint, Entity, Policy, Resource
from tests.admin.browsing import policy_form, said
from tests.admin.test_exchange import imported
from tests.api.site import ROOT, as_user
from tests.commands.running import run

pytestmark = pytest.mark.django_db


class Site:
    """Random changes of a site, by any of the ways in; each does one thing to one object that was not so before."""

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._api = as_user(User.objects.get())
        self._file = directory / "limits.yaml"
        self._random = random.Random(7)
        self._count = 0
        self.policy = limits.set_system_limits([CallLimit(1, 60)])
        limits.set_resource_limits("limits_app.api", [], effect="unlimited")
        limits.set_resource_limits("boosted", [CallLimit(1, 60)])

    def change(self) -> int:
        """Change something, and say how many objects that concerned."""
        self._count += 1
        way: Callable[[], int] = self._random.choice([
            self.service,
            self.deletion,
            self.model,
            self.update,
            self.bulk,
            self.upsert,
            self.form,
            self.inline,
            self.action,
            self.imported,
            self.api_addition,
            self.api_change,
            self.api_deletion,
            self.command,
            self.file,
            self.boost,
            self.reverted,
        ])  # fmt: skip
        return way()

    def service(self) -> int:
        limits.set_entity_limits(f"user:{self._count}", [CallLimit(self._count, 60)], actor="ann")
        return 2

    def deletion(self) -> int:
        found = Policy.objects.exclude(entity=None).order_by("?").first()
        return 0 if found is None else int(limits.delete_entity_limits(found.entity.identifier))

    def model(self) -> int:
        Endpoint.objects.create(
            name=f"e{self._count}", path="/", resource=Resource.objects.create(name=f"r{self._count}")
        )
        return 2

    def update(self) -> int:
        return Entity.objects.update(name=f"n{self._count}")

    def bulk(self) -> int:
        Resource.objects.bulk_create([Resource(name=f"b{self._count}-{number}") for number in range(3)])
        return 3

    def upsert(self) -> int:
        Resource.objects.update_or_create({"description": f"d{self._count}"}, name="upserted")
        return 1

    def form(self) -> int:
        return self._sent("resource_add", {"name": f"f{self._count}"})

    def inline(self) -> int:
        limit = self.policy.limits.get()
        row = {"id": limit.pk, "policy": self.policy.pk, "kind": "call", "key": "call_count"}
        row |= {"capacity": self._count + 1, "window_seconds": 60, "algorithm": "token_bucket"}
        return self._sent("policy_change", policy_form(row, existing=1), self.policy.pk)

    def action(self) -> int:
        chosen = list(Resource.objects.filter(endpoints=None, policies=None).values_list("pk", flat=True)[:3])
        form = {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}
        return len(chosen) * self._sent("resource_changelist", form) if chosen else 0

    def imported(self) -> int:
        rows = [{"name": f"i{self._count}-{number}", "description": "", "pool": ""} for number in range(2)]
        assert "Import finished" in said(imported(self._client, "resource", rows))[-1]
        return 2

    def api_addition(self) -> int:
        whose = {"identifier": f"api:{self._count}"}
        assert self._api.post(f"{ROOT}entities/", whose, format="json").status_code == 201
        policy = {"entity": whose["identifier"], "effect": "blocked"}
        assert self._api.post(f"{ROOT}policies/", policy, format="json").status_code == 201
        return 2

    def api_change(self) -> int:
        where, change = f"{ROOT}policies/{self.policy.pk}/", {"reason": f"because {self._count}"}
        assert self._api.patch(where, change, format="json", headers={"If-Match": "*"}).status_code == 200
        return 1

    def api_deletion(self) -> int:
        found = Resource.objects.filter(endpoints=None, policies=None).first()
        if found is None:
            return 0
        answered = self._api.delete(f"{ROOT}resources/{found.pk}/", headers={"If-Match": "*"})
        assert answered.status_code == 204
        return 1

    def command(self) -> int:
        assert run(f"resource set c{self._count} calls=5/min --yes").code == 0
        return 2

    def file(self) -> int:
        content = {
            "version": 1,
            "name": f"n{self._count}",
            "entities": {f"file:{self._count}": {}},
            "policies": [{"entity": f"file:{self._count}", "limits": ["calls=5/min"]}],
        }
        self._file.write_text(json.dumps(content))
        assert run(f"apply {self._file} --yes").code == 0
        return 2

    def boost(self) -> int:
        until = timezone.now() + timedelta(days=1)
        limits.grant_boost(f"boosted:{self._count}", "boosted", [CallLimit(10**6, 60)], until, "launch")
        return 2

    def reverted(self) -> int:
        Resource.objects.create(name=f"v{self._count}")
        event = AuditEvent.objects.order_by("-number")[0]
        revert(event)
        return 2

    def _sent(self, page: str, form: dict[str, Any], *keys: int) -> int:
        response = self._client.post(reverse(f"admin:limits_app_{page}", args=keys), form)
        assert response.status_code == 302, response.content
        return 1


def test_hundreds_of_random_changes_are_as_many_events(admin_client: Client, tmp_path: Path) -> None:
    site = Site(admin_client, tmp_path)
    expected = AuditEvent.objects.count()
    while expected < 250:
        expected += site.change()
        assert AuditEvent.objects.count() == expected
    report = verify()
    assert report.ok
    assert report.events == expected
    assert {"admin", "api", "command", "import", "service"} <= {*AuditEvent.objects.values_list("source", flat=True)}
    assert list(unrecorded()) == []
    Resource.objects.create(name="kept")
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE limits_app_resource SET description = 'by sql' WHERE name = 'kept'")
        cursor.execute("UPDATE limits_app_limit SET text = '5000/min' WHERE policy_id = %s", [site.policy.pk])
    assert {(one.object_type, str(one).split(" was ")[1]) for one in unrecorded()} == {
        ("resource", "changed without an event"),
        ("policy", "changed without an event"),
    }
