"""Commands about an entity itself, its credit, and the summary of a site."""

from __future__ import annotations

import json

import pytest

from limits_app import CallLimit, RateLimit, limits
from limits_app.models import AlertRule, AuditEvent, Entity, Policy
from tests.commands.conftest import Store
from tests.commands.running import run


def fields(identifier: str) -> tuple[str | None, bool, bool, bool]:
    """The parent of an entity and its flags."""
    entity = Entity.objects.get(identifier=identifier)
    return entity.parent and str(entity.parent), entity.cascade, entity.blocked, entity.unlimited


def test_a_parent_is_set_and_removed() -> None:
    assert run("entity parent user:7 tenant:acme --cascade --reason contract").code == 0
    assert fields("user:7") == ("tenant:acme", True, False, False)
    assert run("entity parent user:7 tenant:globex").code == 0
    assert fields("user:7") == ("tenant:globex", True, False, False)
    assert run("entity parent user:7 '' --no-cascade").code == 0
    assert fields("user:7") == (None, False, False, False)
    reasons = AuditEvent.objects.filter(object_type="entity", object_label="user:7").order_by("number")
    assert [event.reason for event in reasons] == ["contract", "", ""]


def test_a_parent_below_its_own_entity_is_rejected() -> None:
    run("entity parent user:7 tenant:acme")
    ran = run("entity parent tenant:acme user:7")
    assert ran.code == 2
    assert "parent" in ran.err
    assert fields("tenant:acme")[0] is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--blocked", (None, False, True, False)),
        ("--unlimited", (None, False, False, True)),
        ("--parent tenant:acme --cascade", ("tenant:acme", True, False, False)),
    ],
)
def test_flags_need_no_limits_and_make_no_policy(options: str, expected: tuple[object, ...]) -> None:
    assert run(f"entity set user:7 {options}").code == 0
    assert fields("user:7") == expected
    assert not Policy.objects.exists()


def test_flags_and_limits_are_set_together_or_not_at_all() -> None:
    assert run("entity set user:7 calls=5/min --parent tenant:acme --dry-run").code == 0
    assert not Entity.objects.exists()
    assert run("entity set user:7 calls=5/min --parent user:7").code == 2
    assert not Policy.objects.exists()
    assert run("entity set user:7 calls=5/min --parent tenant:acme").code == 0
    assert fields("user:7")[0] == "tenant:acme"
    assert limits.get_entity_limits("user:7") == (CallLimit.per_minute(5),)
    assert run("entity set user:7 --blocked").code == run("entity set user:7 --no-blocked").code == 0
    assert fields("user:7") == ("tenant:acme", False, False, False)
    assert limits.get_entity_limits("user:7") == (CallLimit.per_minute(5),)


def test_a_flag_that_also_blocks_others_needs_a_confirmation() -> None:
    ran = run("entity set ip:10.0.0.5 --blocked")
    assert (ran.code, "a private network" in ran.err) == (2, True)
    assert run("entity set ip:10.0.0.5 --blocked --yes").code == 0
    assert "A pattern has no" in run("entity set ip:10.0.0.0/8 --blocked --yes").err


def test_the_resources_of_an_entity() -> None:
    for command in ("user:7 calls=5/min --on mail", "user:8 calls=5/min --on chat", "user:7 calls=9/min"):
        assert run(f"entity set {command}").code == 0
    assert json.loads(run("entity list-resources user:7 --format json").out) == [{"resource": "mail"}]
    assert json.loads(run("entity list-resources --format json").out) == [{"resource": "chat"}, {"resource": "mail"}]
    assert run("entity list-resources user:9").err.strip() == "There are no policies of this kind."


def used(entity: str) -> float:
    return limits.status("chat", entity=entity).limits["tpm"]["used"]


def test_credit_is_given_once() -> None:
    limits.set_resource_limits("chat", [RateLimit.per_day("tpm", 1000)])
    limits.acquire("chat", entity="user:7", requested={"tpm": 900}).release()
    before = used("user:7")
    dry = run("top-up chat tpm=500 --entity user:7 --dry-run")
    assert (dry.code, used("user:7")) == (0, pytest.approx(before, abs=1))
    for said in ("Credited.", "Already done with this name: nothing was changed."):
        ran = run("top-up chat tpm=500 --entity user:7 --once ticket-18 --reason 'our mistake'")
        assert (ran.code, ran.err.strip()) == (0, said)
    assert used("user:7") == pytest.approx(before - 500, abs=1)
    assert AuditEvent.objects.get(verb="top_up").reason == "our mistake"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("top-up tpm=5", "Name either a RESOURCE or --total"),
        ("top-up chat tpm=5 --total", "Name either a RESOURCE or --total"),
        ("top-up chat tpmm=5", "must be one of: tpm"),
        ("top-up chat tpm=much", "must be"),
        ("top-up chat tpm", "such as tpm=500"),
        ("status --entity user:7", "Name a RESOURCE"),
    ],
)
def test_wrong_commands_change_nothing(command: str, message: str) -> None:
    limits.set_resource_limits("chat", [RateLimit.per_day("tpm", 1000)])
    ran = run(command)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_status_without_a_resource_is_a_summary_of_the_site(store: Store) -> None:
    limits.set_resource_limits("chat", [RateLimit.per_day("tpm", 1000)])
    limits.set_entity_limits("user:7", [CallLimit.per_day(2)], resource="mail", enforcement="shadow")
    limits.acquire("chat", requested={"tpm": 900}).release()
    assert not limits.try_acquire("chat", requested={"tpm": 900})
    summary = json.loads(run("status --format json").out)
    assert summary["emergency switch"] == "enforce"
    assert (summary["resources"], summary["policies"], summary["policies not enforced"]) == (2, 2, 1)
    assert summary["rejections in the last hour"] == 1
    assert (summary["store default"], summary["tightest limit 1"]) == ("closed", "chat tpm 90%")
    assert run("status").out.splitlines()[1].split() == ["emergency", "switch", "enforce"]
    store.down = True
    assert "usage is unknown for chat" in run("status").err


def test_an_unknown_client_is_named_before_its_explanation() -> None:
    limits.set_resource_limits("chat", [RateLimit.per_day("tpm", 1000)])
    limits.acquire("chat", entity="user:7", requested={"tpm": 900}).release()
    limits.roll_up()
    assert run("explain chat --entity user:7").err == ""
    ran = run("explain chat --entity user:77")
    assert ran.err.startswith("note: no usage of the entity 'user:77'")


def test_alert_rules_are_set_changed_listed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    rule = "alerts set ops --kind rejections --rejections 50 --channel webhook --target https://example.com/hook"
    assert run(f"{rule} --secret-from HOOK_SECRET --dry-run").code == 0
    assert not AlertRule.objects.exists()
    ran = run(f"{rule} --secret-from HOOK_SECRET")
    assert (ran.code, "s3cret" in ran.shown) == (0, False)
    assert run("alerts set ops --rejections 70 --no-enabled").code == 0
    stored = AlertRule.objects.get()
    assert (stored.rejections, stored.enabled, stored.secret) == (70, False, "s3cret")
    [listed] = json.loads(run("alerts list --format json").out)
    assert (listed["name"], listed["rejections"], "secret" in listed) == ("ops", 70, False)
    assert run("alerts delete ops --yes").code == 0
    assert run("alerts delete ops --yes").code == 1
    assert not AlertRule.objects.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind threshold --percent 81 --target ops@example.com", "percent: Enter one of"),
        ("--kind threshold --percent 80", "target:"),
        ("--kind storm --target ops@example.com", "invalid choice"),
        ("--kind store --target ops@example.com --resource mail", "resource: Leave this empty"),
        ("--kind store --target ops@example.com --secret-from NO_SUCH_VARIABLE", "'NO_SUCH_VARIABLE' is not set"),
        ("--kind store --target ops@example.com --reason x", "does not record alert rules"),
    ],
)
def test_wrong_alert_rules_are_not_saved(options: str, message: str) -> None:
    ran = run(f"alerts set ops {options}")
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not AlertRule.objects.exists()
