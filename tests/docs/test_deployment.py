"""The manifests of the guide to containers fit the settings beside them, and the commands in them run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core import checks
from django.core.management import call_command
from django.http import HttpResponse
from django.urls import path
from gunicorn.config import Config
from pytest_django import Settings

from limits_app import CallLimit, limits
from limits_app.models import Endpoint, Resource
from limits_app.testing import SiteClient
from tests.docs.pages import DOCS, blocks
from tests.servers.redis import redis_server

PAGE = DOCS / "howto" / "docker-and-kubernetes.md"
MANIFESTS: dict[str, Any] = {
    block.text.split("\n", 1)[0].removeprefix("# "): yaml.safe_load(block.text) for block in blocks(PAGE, "yaml")
}
SHARED, SENTINEL, ALONE = [block.text for block in blocks(PAGE, "python") if "LIMITS = {" in block.text]
LIMITS_COMMAND = re.compile(r"python manage\.py limits ([^&;\"`\n]+)")


def limits_of(code: str) -> Any:
    shown: dict[str, Any] = {}
    exec(code, shown)  # noqa: S102 - it is our own documentation
    return shown["LIMITS"]


def problems(**options: Any) -> list[str | None]:
    found = checks.run_checks(tags=["limits_app"], include_deployment_checks=True, **options)
    return [message.id for message in found if message.level >= checks.WARNING]


def test_every_manifest_has_a_kind_and_a_name() -> None:
    kinds = {name: one["kind"] for name, one in MANIFESTS.items() if name != "compose.yaml" and one["metadata"]["name"]}
    assert kinds == {
        "redis.yaml": "StatefulSet",
        "redis-service.yaml": "Service",
        "limits.yaml": "ConfigMap",
        "migrate.yaml": "Job",
        "web.yaml": "Deployment",
        "usage.yaml": "CronJob",
    }


def test_the_expected_processes_are_replicas_times_workers() -> None:
    deployment = MANIFESTS["web.yaml"]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    (processes,) = [one["value"] for one in container["env"] if one["name"] == "LIMITS_PROCESSES"]
    workers = container["command"][container["command"].index("--workers") + 1]
    assert int(processes) == deployment["replicas"] * int(workers)


def test_pods_run_as_the_user_of_the_image_and_have_time_to_end() -> None:
    pod = MANIFESTS["web.yaml"]["spec"]["template"]["spec"]
    (container,), (image,) = pod["containers"], blocks(PAGE, "dockerfile")
    assert f"--uid {pod['securityContext']['runAsUser']} " in image.text
    _, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) + Config().graceful_timeout < pod["terminationGracePeriodSeconds"]
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}


def test_redis_on_kubernetes_has_the_options_of_the_compose_file_and_the_address_of_all_pods() -> None:
    (redis,) = MANIFESTS["redis.yaml"]["spec"]["template"]["spec"]["containers"]
    assert redis["args"] == MANIFESTS["compose.yaml"]["services"]["redis"]["command"]
    service = MANIFESTS["redis-service.yaml"]
    address = f"redis://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/0"
    assert re.findall(r"LIMITS_REDIS_URL, value: \"(.*)\"", PAGE.read_text()) == [address] * 3


@pytest.mark.usefixtures("site")
def test_the_settings_pass_the_checks_on_the_redis_of_the_compose_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *options = MANIFESTS["compose.yaml"]["services"]["redis"]["command"]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with redis_server(*options) as server:
        monkeypatch.setenv("LIMITS_REDIS_URL", server.url)
        settings.LIMITS = limits_of(SHARED)
        assert problems(databases=["default"]) == []


@pytest.mark.usefixtures("site")
def test_a_process_store_on_kubernetes_is_a_warning(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LIMITS = limits_of(ALONE)
    (image,) = blocks(PAGE, "dockerfile")
    assert f"-m 0700 /var/lib/shop {settings.LIMITS['STORES']['default']['STATE_DIR']}" in image.text
    assert problems() == []
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert problems() == ["limits_app.W058"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("page", "url"), [(PAGE, "/health/"), (DOCS / "metrics.md", "/metrics")])
def test_url_rules_do_not_count_probes_and_prometheus(page: Path, url: str) -> None:
    (code,) = [block.text for block in blocks(page, "python") if "urlpatterns = [" in block.text]
    shown: dict[str, Any] = {"__name__": "shop.urls"}
    exec(code.replace("metrics.record(recorder())", ""), shown)  # noqa: S102 - it is our own documentation
    limits.set_resource_limits("pages", [CallLimit.per_hour(1)])
    Endpoint.objects.create(name="all pages", path="/*", resource=Resource.objects.get(name="pages"))
    middleware = ["limits_app.integrations.middleware.LimitsMiddleware"]
    client = SiteClient(
        [*shown["urlpatterns"], path("page", lambda _: HttpResponse())], settings={"MIDDLEWARE": middleware}
    )
    assert {client.get("/page").status_code for _ in range(2)} >= {429}
    assert [client.get(url, headers={"host": "localhost"}).status_code for _ in range(2)] == [200, 200]


@pytest.mark.usefixtures("site")
def test_the_commands_of_the_manifests_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(MANIFESTS["limits.yaml"]["data"]["limits.yaml"])
    commands = [command.split() for command in LIMITS_COMMAND.findall(PAGE.read_text())]
    assert {command[0] for command in commands} == {"apply", "snapshot", "prune"}
    for command in commands:
        call_command("limits", *[str(file) if word.endswith("limits.yaml") else word for word in command])
    assert "policy resource reports" in capsys.readouterr().out
