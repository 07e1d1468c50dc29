"""Commands that look: check, explain, status, top, usage and the audit log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.management.limits import state
from limits_app.models import AuditEvent, BucketKind, Denial, Endpoint, Price, Resource, UsagePeriod, UsageSnapshot
from limits_app.models.audit_log import CONTENT, digest_of
from tests.commands.conftest import Store
from tests.commands.running import run

TPM = RateLimit("tpm", 100, 3600, RateLimitAlgorithm.FIXED_WINDOW)


def use(amount: int, entity: str | None = None, resource: str = "api") -> None:
    with limits.acquire(resource, entity=entity, requested={"tpm": amount}) as acquisition:
        acquisition.update({"tpm": amount})


def test_check_rejects_with_its_exit_code_and_charges_and_counts_nothing() -> None:
    limits.set_resource_limits("api", [TPM, CallLimit(1, 3600, RateLimitAlgorithm.FIXED_WINDOW)])
    assert [run("check api").code, run("check api tpm=100").code] == [0, 0]
    use(60)
    refused = run("check api tpm=50 --format json")
    assert (refused.code, json.loads(refused.out)["allowed"]) == (3, False)
    assert refused.err.startswith("Rejected: ")
    assert run("check api").code == 3
    assert run("check api --entity user:1").code == 0
    limits.roll_up()
    assert not Denial.objects.exists()
    for line in ("check other", "explain other"):
        unknown = run(line)
        assert unknown.code == 1
        assert "warning: the resource 'other' does not exist: check the spelling" in unknown.err


def test_a_resource_with_prices_or_usage_exists() -> None:
    run("prices set maps call_count=0.01 --per 1 --yes")
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    about = {"bucket": BucketKind.ENTITY, "key": "rpm", "period": UsagePeriod.HOUR, "start": now}
    UsageSnapshot.objects.create(resource="search", entity="user:7", **about)
    for resource, code in (("maps", 0), ("search", 0), ("mapz", 1)):
        for command in ("check", "explain"):
            ran = run(f"{command} {resource}")
            assert (ran.code, "does not exist" in ran.err) == (code, bool(code))


def test_a_rate_that_is_used_up_is_refused_as_views_refuse_it() -> None:
    limits.set_resource_limits("api", [TPM])
    use(100)
    assert run("check api").code == 3
    assert "rejected now" in run("explain api").out
    assert run("check api tpm=0").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "check api tpm=5 rpm=1 --entity user:1",
        "check api --entity user:1 tpm=5 rpm=1",
        "check --entity user:1 api tpm=5 rpm=1",
        "check api tpm=5 --entity user:1 rpm=1",
    ],
)
def test_options_may_stand_anywhere(command: str) -> None:
    limits.set_entity_limits("user:1", [TPM, RateLimit("rpm", 10, 3600)], resource="api")
    told = json.loads(run(f"{command} --format json").out)
    assert {one["key"]: one["requested"] for one in told["passed"]} == {"tpm": 5, "rpm": 1}


def test_check_shows_trials_and_overdrawn_limits() -> None:
    soft = RateLimit("tpm", 100, 3600, RateLimitAlgorithm.FIXED_WINDOW, soft=True)
    limits.set_resource_limits("api", [soft])
    limits.set_entity_limits("user:1", [RateLimit("tpm", 1, 3600)], resource="api", enforcement="shadow")
    tried = run("check api tpm=5 --entity user:1").out.splitlines()[1:]
    assert [line.split()[0] for line in tried] == ["would", "allows"]
    assert run("check api tpm=101").out.splitlines()[1].startswith("overdrawn")


def test_an_unavailable_store_is_answered_by_policy_without_figures(store: Store) -> None:
    limits.set_resource_limits("api", [TPM], on_unavailable="allow")
    limits.set_resource_limits("closed", [TPM], on_unavailable="block")
    store.down = True
    assert "`on_unavailable` decided" in run("check api").err
    assert run("check closed").code == 1
    for line in ("explain api", "status api", "reset api --yes", "top --once", "snapshot"):
        ran = run(line)
        assert (ran.code, "store" in ran.err.lower()) == (1, True), line


def test_the_plan_of_a_request_is_an_option() -> None:
    limits.set_plan_limits("pro", [TPM])
    assert "In effect: the policy of the plan pro" in run("explain api --entity user:1 --plan pro tpm=5").out
    assert "plan" in run("check api tpm=5 --entity user:1 --plan pro").out
    assert "tpm" in run("status api --entity user:1 --plan pro").out
    assert "There are no limits" in run("status api --entity user:1").err + run("status api --entity user:1").out
    assert run(f"explain api --plan {'x' * 65}").code != 0


def test_explain_prints_json_for_programs() -> None:
    limits.set_resource_limits("api", [TPM])
    assert json.loads(run("explain api --format json").out)["resource"] == "api"
    assert run("explain api --format csv").out.splitlines()[1].startswith("allows,tpm,")


def test_status_shows_members_and_the_shared_use() -> None:
    run("pool set claude --serves claude")
    run("pool set-member claude east rpm=5/min")
    limits.set_resource_limits("claude", [ResourceLimit("db", 3), QuotaLimit.per_month("budget", 9)])
    shown = run("status claude --format csv").out.splitlines()
    assert shown[1:] == [
        ",budget,quota,9,0,9,0.0,,",
        ",db,resource,3,0,3,0.0,,",
        "east,rpm,rate,5,0,5,0.0,60,token_bucket",
    ]
    assert "Total usage of the site itself and all known entities (0): budget 0, db 0." in run("status claude").err
    assert run("status claude --entity user:1").err == ""


def test_top_shows_the_tightest_limits_first_also_of_those_without_a_row() -> None:
    limits.set_resource_limits("api", [TPM])
    limits.set_entity_limits("user:1", [RateLimit("tpm", 1000, 3600)], resource="api")
    use(10)
    use(90, "user:2")
    use(500, "user:1")
    use(1, "somebody", resource="unknown")
    run("snapshot")
    shown = json.loads(run("top --once --format json").out)
    assert [(row["entity"], row["percent"]) for row in shown] == [("user:2", 90), ("user:1", 50), (None, 10)]
    assert len(json.loads(run("top --once --lines 1 --format json").out)) == 1
    assert len(json.loads(run("top --once --scopes 1 --format json").out)) == 1


Pausing = Callable[[Callable[[float], None]], None]


@pytest.fixture
def pausing(monkeypatch: pytest.MonkeyPatch) -> Pausing:
    """Call a function with the seconds of a pause of the command, in place of the pause."""

    def pause_by(wait: Callable[[float], None]) -> None:
        monkeypatch.setattr(state, "Event", lambda: SimpleNamespace(wait=wait))

    return pause_by


def test_top_outlives_a_store_that_is_down(store: Store, pausing: Pausing) -> None:
    def wait(_seconds: float) -> None:
        if not store.down:
            raise KeyboardInterrupt
        store.down = False

    pausing(wait)
    limits.set_resource_limits("api", [TPM])
    store.down = True
    ran = run("top")
    first, second = (line for line in ran.err.splitlines() if " UTC" in line)
    assert (ran.code, "a store is unavailable" in first, "unavailable" in second) == (0, True, False)


def test_top_shows_known_rows_and_marks_unavailable_ones(settings: Settings) -> None:
    nowhere = {"KIND": "redis", "URL": "redis://127.0.0.1:1/0"}
    settings.LIMITS = {**settings.LIMITS, "STORES": {"default": {"KIND": "memory"}, "other": nowhere}}
    Resource.objects.create(name="mail", store="other")
    for name in ("api", "mail"):
        limits.set_resource_limits(name, [TPM])
    ran = run("top --once --format csv")
    assert ran.code == 0
    assert ran.out.splitlines()[1:] == ["api,,tpm,0,100,0.0,resource", "mail,,tpm,,100,,resource"]
    assert ran.err == "A store is unavailable: usage is unknown for mail.\n"


def test_top_runs_until_ctrl_c(pausing: Pausing) -> None:
    waits: Iterator[float] = iter([1, 1])

    def wait(seconds: float) -> None:
        assert seconds == 5
        if next(waits, None) is None:
            raise KeyboardInterrupt

    pausing(wait)
    limits.set_resource_limits("api", [TPM])
    ran = run("top --interval 5s")
    assert (ran.code, ran.out.count("resource"), ran.err.count(" UTC\n")) == (0, 6, 3)


def test_usage_is_distinguished_as_asked() -> None:
    limits.set_resource_limits("api", [TPM])
    use(10, "user:1")
    use(30, "user:2")
    added = json.loads(run("snapshot --format json").out)
    assert added == {"added": {"default": 2}, "failed": {}}
    head, *rows = run("usage --by entity --by resource --format csv").out.splitlines()
    assert head == "resource,entity,bucket,key,admitted,rejected,rejected_share"
    assert rows == ["api,user:2,entity,tpm,30,0,", "api,user:1,entity,tpm,10,0,"]
    first = run("usage --entity user:1 --key tpm --most 1").out.splitlines()[1]
    assert first.split() == ["api", "entity", "tpm", "10", "0"]
    [of_the_hour] = json.loads(run("usage --since 1h --until 1ms --period hour --by period --format json").out)
    assert of_the_hour["admitted"] == 40
    assert run("usage --resource other").err.startswith("No usage.")


def test_usage_has_the_cost_of_each_row() -> None:
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    for currency, amount in (("eur", "0.000000001"), ("usd", "2")):
        values = {"resource": "api", "unit": "tpm", "per": 1, "valid_from": today, "currency": currency}
        Price.objects.create(**values, amount=Decimal(amount))
    about = {"resource": "api", "period": UsagePeriod.DAY, "start": today, "entity": "user:1", "plan": "pro"}
    UsageSnapshot.objects.create(**about, key="tpm", admitted_milli=10_000)
    UsageSnapshot.objects.create(**about, key="unpriced", admitted_milli=1_000)
    lines = run("usage --cost --by entity --by plan --format csv").out.splitlines()
    assert lines == [
        "entity,plan,bucket,key,admitted,rejected,rejected_share,cost,currency",
        "user:1,pro,entity,tpm,10,0,,0.00000001,eur",
        "user:1,pro,entity,tpm,10,0,,20,usd",
        "user:1,pro,entity,unpriced,1,0,,,",
    ]
    [first, _] = json.loads(run("usage --cost --by plan --plan pro --format json").out)
    assert first["cost"] == {"eur": "0.00000001", "usd": "20"}
    assert "0.00000001" in run("usage --cost").out


def test_a_chart_has_a_scale_of_its_own_for_each_limit() -> None:
    start = timezone.now().replace(minute=0, second=0, microsecond=0)
    for hours, key, milli, refused in (
        (1, "tpm", 10_000, 0),
        (2, "tpm", 5_000, 3),
        (2, "zoom", 500, 0),
        (2, "none", 0, 0),
    ):
        about = {"resource": "api", "key": key, "period": UsagePeriod.HOUR, "start": start - timedelta(hours=hours)}
        UsageSnapshot.objects.create(admitted_milli=milli, refused=refused, **about)
    lines = run("usage --chart --period hour").out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "none, at most 0",
        "tpm, at most 10",
        "zoom, at most 0.5",
    ]
    early, late = (line for line in lines[3:5])
    assert early.endswith("█" * 20 + "·" * 20 + "  5, 3 rejected")
    assert late.endswith("█" * 40 + "  10")
    assert run("usage --chart --resource other").out == "No usage.\n"


def test_old_rows_are_archived_and_deleted(tmp_path: Path, settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "USAGE_HOURS_KEPT": 24}
    old = timezone.now() - timedelta(days=3)
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=old, resource="api", key="tpm", admitted_milli=1)
    run("resource set api rpm=5/min")
    events = AuditEvent.objects.count()
    dry = json.loads(run("prune --dry-run --audit-before 1ms --format json").out)
    assert {row["what"]: row["rows"] for row in dry} == {
        "usage-hours": 1,
        "usage-days": 0,
        "denials": 0,
        "audit": events,
    }
    assert run("prune --dry-run --format csv").out == "what,rows\nusage-hours,1\nusage-days,0\ndenials,0\n"
    assert UsageSnapshot.objects.count() == 1
    done = run(f"prune --yes --audit-before 1ms --archive {tmp_path} --reason 'law'")
    assert done.code == 0
    assert f"audit           {events}\n" in done.out
    [file] = tmp_path.glob("audit-????????.jsonl.gz")
    archived = gzip.decompress(file.read_bytes()).splitlines()
    assert [json.loads(line)["object_label"] for line in archived] == ["api", "resource api"]
    assert len([*tmp_path.glob("usage-hours*")]) == 1
    pruning = AuditEvent.objects.get()
    assert (pruning.verb, pruning.source, pruning.reason) == ("prune", "command", "law")
    assert run("prune --dry-run --audit-before 2001-01-01 --format csv").out.endswith("audit,0\n")
    assert json.loads(run("audit verify --format json").out)["ok"] is True


def test_archived_events_are_verified_by_their_digests(tmp_path: Path) -> None:
    run("resource set api rpm=5/min budget=2.5/day@UTC --reason 'a long story'")
    run("resource set api rpm=6/min")
    made = AuditEvent.objects.count()
    assert run(f"prune --yes --audit-before 1ms --archive {tmp_path}").code == 0
    [file] = tmp_path.glob("audit-*")
    events = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert len(events) == made
    previous = ""
    for event in events:
        content = event | {"when": datetime.fromisoformat(event["when"])}
        assert event["digest"] == digest_of(previous, [content[name] for name in CONTENT])
        previous = event["digest"]


def test_code_that_runs_the_command_deletes_nothing_either_where_the_moment_is_still_to_come(
    settings: Settings,
) -> None:
    settings.LIMITS = {**settings.LIMITS, "USAGE_HOURS_KEPT": 24}
    old = timezone.now() - timedelta(days=3)
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=old, resource="api", key="tpm", admitted_milli=1)
    with pytest.raises(CommandError, match="before must not be in the future"):
        call_command("limits", "prune", yes=True, audit_before=timezone.now() + timedelta(hours=1))
    assert UsageSnapshot.objects.count() == 1


def test_failed_archive_keeps_the_rows(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run("resource set api rpm=5/min")
    ran = run(f"prune --yes --audit-before 1ms --archive {tmp_path / 'file'}")
    assert (ran.code, AuditEvent.objects.count()) == (1, 2)
    assert "Cannot write the archive" in ran.err


def test_the_log_is_listed_the_latest_first_and_shown_in_full() -> None:
    run("resource set api rpm=5/min")
    run("resource set other tpm=5/min:burst=3 calls=7/min connections=9 budget=5/day@UTC --reason 'a long story'")
    run("resource set api rpm=6/min")
    newest, *_ = rows = json.loads(run("audit list --format json").out)
    assert [row["number"] for row in rows] == [5, 4, 3, 2, 1]
    assert newest["object_label"] == "resource api"
    assert "limit rpm rpm=5/min -> rpm=6/min" in run("audit list --most 1").out
    [made] = [line for line in run("audit list --object 'resource other'").out.splitlines() if "policy" in line]
    assert " ..." in made
    assert "limit connections connections=9" in run("audit list --object 'resource other' --format csv").out
    assert run("audit list --object 'policy resource other'").out.splitlines()[1:] == [made]
    assert run("audit list --actor nobody").err == "No changes.\n"
    assert run("audit list --since 2099-01-01").err == "No changes.\n"
    run("resource delete api --yes")
    assert "no effect" in run("audit list --most 1").out
    shown = run("audit show 4")
    assert "limit tpm" in shown.out
    event = AuditEvent.objects.get(number=4)
    assert shown.err == f"{event.when:%Y-%m-%d %H:%M} UTC, {event.actor}: a long story\n"
    assert run("audit show 5").err.endswith(": no reason\n")


def test_a_broken_log_is_an_answer_of_no_and_rows_are_compared_with_it_where_that_is_asked_for() -> None:
    run("resource set api rpm=5/min")
    alone, compared = (run(f"audit verify{option}") for option in ("", " --unrecorded"))
    assert (alone.code, compared.code, compared.err, alone.out) == (0, 0, "", compared.out)
    report = json.loads(run("audit verify --format json").out)
    assert report["unrecorded"] is None
    assert json.loads(run("audit verify --unrecorded --format json").out)["unrecorded"] == []
    assert run("audit verify --format csv").out.splitlines()[1].endswith(",,")
    assert run(f"audit verify --known {report['number']}:{report['digest']}").code == 0
    wrong = run(f"audit verify --known {report['number']}:{'0' * 64}")
    assert (wrong.code, "differs from the known one" in wrong.out) == (3, True)
    broken = json.loads(run(f"audit verify --known 1:{'0' * 64} --unrecorded --format json").out)
    assert (broken["ok"], broken["unrecorded"]) == (False, None)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE limits_app_resource SET description = 'by SQL'")
    assert run("audit verify").code == 0
    found = run("audit verify --unrecorded")
    assert (found.code, "was changed without an event" in found.out) == (3, True)


def test_requests_name_existing_keys() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    assert run("check api calls=10").code == 0
    assert "can never admit 99" in run("check api calls=99").err
    assert "requests: 10 of 10 left, 5 requested" in run("explain api calls=5").out
    for line in ("check api rpm=1", "explain api rpm=1"):
        assert (run(line).code, run(line).err) == (2, "No limit has the key rpm; must be one of: call_count\n")
    limits.set_resource_limits("llm", ["usd=5/month", "tokens=9/min"])
    for line in ("check llm pages=1", "explain llm pages=1"):
        error = "No limit and no price has the key pages; must be one of: tokens, usd\n"
        assert (run(line).code, run(line).err) == (2, error)
    assert run("check api calls=1 call_count=1").code == 2
    limits.set_entity_limits("user:1", [], effect="blocked")
    blocked = run("check api rpm=1 --entity user:1")
    assert (blocked.code, blocked.err) == (3, "Blocked: everything for user:1 is blocked.\n")
    assert run("check other rpm=1").err.startswith("Allowed: there are no limits.\n")
    limits.set_resource_limits("tried", [ResourceLimit("calls", 2)], enforcement="shadow")
    assert run("check tried calls=1").code == 0


def test_rules_shows_which_rules_charge_a_path_in_their_order() -> None:
    Endpoint.objects.create(name="admin", view_name="admin:login", limits="5/min", counted_by="ip", order=2)
    Endpoint.objects.create(name="all", path="/*", limits="60/min", exempt_staff=True, amounts={"calls": 2}, order=1)
    Endpoint.objects.create(name="posts", path="/admin/*", limits="9/min", methods="POST", stop=True, order=3)
    found = run("rules /admin/login/ --method post --format json")
    columns = ("rule", "resource", "counted_by", "amounts", "exempts_some", "stop")
    assert [tuple(one[column] for column in columns) for one in json.loads(found.out)] == [
        ("all", "rule-all", "entity", {"calls": 2}, True, False),
        ("admin", "rule-admin", "ip", {}, False, False),
        ("posts", "rule-posts", "entity", {}, False, True),
    ]
    assert found.code == 0
    assert [one["rule"] for one in json.loads(run("rules /no/such/ --format json").out)] == ["all"]


def test_rules_shows_the_conditions_of_a_rule() -> None:
    fields = {"combined_with": "form:username\nip", "responses": "401,403", "block_for": "10m"}
    Endpoint.objects.create(name="log-in", path="/login/", limits="5/h", counted_by="user", **fields)
    row = json.loads(run("rules /login/ --format json").out)[0]
    assert (row["combined_with"], row["responses"], row["block_seconds"]) == ("form:username, ip", "401,403", 600)


def test_the_audit_log_shows_and_reverts_the_limits_of_a_rule() -> None:
    Endpoint.objects.create(name="all", path="/*", limits="60/min")
    Endpoint.objects.update(limits="5/s")
    assert "60/min" in run("audit list --object all").out
    event = AuditEvent.objects.filter(object_type="endpoint").latest("number")
    assert run(f"audit revert {event.number} --yes").code == 0
    assert Endpoint.objects.get().limits == "60/min"
