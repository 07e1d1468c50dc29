"""Blocks that also hit a proxy, a private network or everyone ask first; a command has no address of its author."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from limits_app import limits
from limits_app.models import AuditEvent, Endpoint, Entity, Policy
from tests.commands.running import run

PRIVATE = "This also blocks a private network."
PROXY = "This also blocks a trusted proxy."
EVERYONE = "This also blocks everyone."


@pytest.fixture(autouse=True)
def proxies(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["9.9.9.9"]}


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("entity set ip:10.0.0.0/8 blocked", PRIVATE), ("entity set ip:127.0.0.1 blocked --on api", PRIVATE),
        ("entity set ip:9.9.9.9 blocked --hours mon-fri", PROXY), ("entity set ip:* blocked", EVERYONE),
        ("entity set ip:10.0.0.0/8 blocked --until 2035-01-01", PRIVATE), ("system set blocked --total", EVERYONE),
    ],
)  # fmt: skip
def test_setting_a_block(line: str, asked: str) -> None:
    refused = run(line)
    assert (refused.code, refused.err) == (2, f"{asked} Go on? stdin is not a terminal; pass --yes to confirm.\n")
    assert not Policy.objects.exists()
    assert run(f"{line} --dry-run").code == 0
    assert not Policy.objects.exists()
    assert run(f"{line} --yes").code == 0
    assert Policy.objects.get().effect == "blocked"


@pytest.mark.parametrize(
    "line",
    [
        "entity set user:7 blocked", "entity set ip:8.8.8.0/24 blocked", "entity set ip:10.0.0.0/8 unlimited",
        "entity set ip:10.0.0.0/8 blocked --enforcement shadow", "plan set pro blocked --dry-run",
        "resource set api blocked",
    ],
)  # fmt: skip
def test_other_policies_do_not_ask(line: str) -> None:
    assert run(line).code == 0


def test_a_block_that_stays_does_not_ask_again() -> None:
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked")
    assert run("entity set ip:10.0.0.0/8 blocked --reason other").code == 0
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked", enforcement="shadow")
    assert run("entity set ip:10.0.0.0/8 blocked").code == 2


def test_reverting_a_change_that_lifted_a_block() -> None:
    limits.set_entity("ip:10.1.2.3", blocked=True)
    limits.set_entity("ip:10.1.2.3", blocked=False)
    event = AuditEvent.objects.order_by("number").last()
    assert event is not None
    refused = run(f"audit revert {event.number}")
    assert refused.code == 2
    assert refused.err.startswith(f"{PRIVATE} Revert event {event.number}, ")
    assert run(f"audit revert {event.number} --yes").code == 0
    assert Entity.objects.get().blocked


def test_applying_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(
        "version: 1\n"
        "entities: {'ip:192.168.0.0/16': {}, 'ip:10.0.0.1': {blocked: true}, 'user:1': {blocked: true}}\n"
        "policies:\n"
        "  - {entity: 'ip:192.168.0.0/16', effect: blocked}\n"
    )
    refused = run(f"apply {file}")
    assert refused.code == 2
    assert refused.err.endswith(f"{PRIVATE} Apply it? stdin is not a terminal; pass --yes to confirm.\n")
    assert "+ entity ip:10.0.0.1" in refused.out
    assert not Entity.objects.exists()
    assert run(f"apply {file} --check").code == 3
    assert run(f"apply {file} --yes").code == 0
    assert run(f"apply {file}").code == 0  # nothing changes
    assert Policy.objects.get().effect == "blocked"
    file.write_text("version: 1\nentities: {'ip:192.168.0.0/16': {}, 'ip:10.0.0.2': {blocked: true}}\n")
    assert run(f"apply {file}").err.endswith(
        f"{PRIVATE} Delete 3 and apply the rest? stdin is not a terminal; pass --yes to confirm.\n"
    )


@pytest.mark.parametrize("rule_limits", ["2/h", "2/h:sliding_window rows=2/h"])
def test_unblocking_names_the_limit_of_a_rule_that_is_used_up(rule_limits: str) -> None:
    Endpoint.objects.create(name="enter", path="/enter/", limits=rule_limits, counted_by="ip", block_for="1h")
    used_up, unused, line = "part:7:ip:192.0.2.1", "ip:192.0.2.2", "unblock {} --yes"
    limits.try_acquire("rule-enter", entity=used_up, requested={"call_count": 2, "rows": 2})
    assert "has used up a limit of rule-enter" in run(line.format(used_up)).err
    assert "used up" not in run(line.format(unused)).err
    assert "used up" not in run(f"{line.format(used_up)} --dry-run").err
    assert run(f"reset rule-enter --entity {used_up} --yes").code == 0
    assert "used up" not in run(line.format(used_up)).err
