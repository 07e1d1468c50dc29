"""Commands that change configuration."""

from __future__ import annotations

import json
import os
import pwd
from datetime import datetime, timedelta

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.utils import timezone
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.management.limits.subcommand import actor
from limits_app.models import (
    AuditEvent,
    BucketKind,
    Entity,
    Policy,
    Pool,
    PoolMember,
    Resource,
    UsagePeriod,
    UsageSnapshot,
)
from tests.commands.running import run
from tests.replacing import without_package

RPM = RateLimit("rpm", 5, 60)


def test_set_takes_effect_immediately_and_is_audited() -> None:
    assert run("resource set api rpm=5/min db=3:shared --reason 'too busy'").code == 0
    assert set(limits.limit_set("api")) == {RPM, ResourceLimit("db", 3)}
    event = AuditEvent.objects.get(object_type="policy")
    assert (event.actor, event.source, event.reason) == (actor(), "command", "too busy")
    assert json.loads(run("resource get api --format json").out)[0]["limits"] == ["db=3:shared", "rpm=5/min"]


def test_set_replaces_limits_and_shows_only_differences() -> None:
    run("resource set api rpm=5/min tpm=9/s --on-unavailable allow")
    shown = json.loads(run("resource set api rpm=6/min tpm=9/s --format json").out)
    assert shown == [
        {"verb": "update", "object": "policy resource api", "field": field, "before": before, "after": after}
        for field, before, after in [("on_unavailable", "allow", ""), ("limit rpm", "rpm=5/min", "rpm=6/min")]
    ]
    again = run("resource set api rpm=6/min tpm=9/s")
    assert (again.out, again.err) == ("", "No changes.\n")


def test_a_dry_run_prints_the_same_as_the_run_and_changes_nothing() -> None:
    lines = [
        "system set calls=5/min --extends --enforcement shadow --rollout 10",
        "entity set user:1 unlimited --on api --from 2026-01-31 --until 2026-02-28T12:00+01:00",
        "pool set claude --no-failover --description 'a pool' --serves claude",
        "entity set user:2 rpm=5/min --until 2099-01-01 --reason x",
    ]
    for line in lines:
        dry = run(f"{line} --dry-run --format csv")
        assert dry.err == "This was a dry run: nothing was changed.\n"
        assert not any(model.objects.exists() for model in (Policy, AuditEvent, Entity, Pool))
        assert list(limits.limit_set("api", "user:1")) == []
    # All at once, since what one makes the next would find there.
    for line in lines:
        assert run(f"{line} --format csv").code == 0
    assert Policy.objects.count() == 3
    assert run("system list --format csv").out.splitlines()[1].startswith("system,calls=5/min,yes,shadow,10,always,")


def test_every_policy_of_a_scope_is_shown_and_only_the_lasting_one_is_deleted() -> None:
    run("entity set user:1 rpm=5/min --on api")
    run("entity set user:1 rpm=9/min --on api --hours 'mon 09:00-17:00' --time-zone Europe/Berlin")
    assert len(json.loads(run("entity get user:1 --on api --format json").out)) == 2
    dry = run("entity delete user:1 --on api --dry-run")
    assert (dry.code, "limit rpm" in dry.out, Policy.objects.count()) == (0, True, 2)
    assert run("entity delete user:1 --on api --yes").code == 0
    [left] = json.loads(run("entity list --on api --format json").out)
    assert (left["limits"], left["when"]) == (["rpm=9/min"], "mon 09:00-17:00 Europe/Berlin")
    assert run("entity list --on elsewhere --format csv").out.count("\n") == 1


def test_setting_warns_of_the_broader_limits_that_are_dropped_and_of_policies_that_override_a_block() -> None:
    run("system set calls=1000/min")
    ran = run("resource set api tpm=50k/min rpm=500/min")
    assert (ran.code, "warning: resource api drops 'call_count' of system: limit it too" in ran.err) == (0, True)
    warning = "system is blocked, but other policies override this: resource api; block the total"
    assert warning in run("system set blocked").err
    run("resource set api blocked")
    assert "warning" not in run("system set blocked").err


def test_setting_a_budget_warns_of_prices_that_begin_later(settings: Settings) -> None:
    run("prices set maps call_count=0.01 --per 1 --from 2101-01-01T13:00Z --yes")
    run("prices set search call_count=0.01 --per 1 --from 2101-01-01T14:00Z --yes")
    of_maps = "warning: maps has no price in usd before 2101-01-01 13:00 UTC: until then, its requests that "
    of_search = "warning: search has no price in usd before 2101-01-01 14:00 UTC"
    total = run("system set usd=10/month --total")
    assert (total.code, f"{of_maps}name units and not 'usd' are an error" in total.err, of_search in total.err) == (
        0,
        True,
        True,
    )
    own = run("resource set maps usd=10/month")
    assert (own.code, f"{of_maps}do not name 'usd' are an error" in own.err, of_search in own.err) == (0, True, False)
    assert "no price" not in run("resource set maps calls=10/min --yes").err
    settings.LIMITS = {**settings.LIMITS, "UNPRICED": "free"}
    assert "no price" not in run("system set usd=11/month --total --yes").err


def test_an_entity_without_recorded_usage_may_be_misspelled() -> None:
    hint = "note: no usage of the entity 'gina' before the last roll-up: check the spelling"
    lines = ("entity set gina rpm=5/min --on api", "check api --entity gina", "explain api --entity gina")
    assert not any(hint in run(line).err for line in lines)  # no usage is recorded
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    about = {"resource": "api", "bucket": BucketKind.ENTITY, "key": "rpm", "period": UsagePeriod.HOUR, "start": now}
    UsageSnapshot.objects.create(entity="user:7", **about)
    assert all(hint in run(line).err for line in lines)
    UsageSnapshot.objects.create(entity="gina", **about)
    assert not any(hint in run(line).err for line in lines)


def test_an_unreachable_database_is_one_line_and_the_rest_is_chained() -> None:
    def fails(*_: object) -> None:
        raise OperationalError("connection failed:\n\tIs the server running?\n")

    with connection.execute_wrapper(fails):
        ran = run("resource list")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "Database error: connection failed: Is the server running. "
        "Check that it exists and is migrated (manage.py migrate)."
    ]


def test_a_pool_is_made_changed_and_emptied() -> None:
    run("pool set claude --load-balancing weighted --serves claude")
    run("""pool set-member claude east rpm=5/min --weight 3 --order 2 --config '{"region": "east"}'""")
    run("pool set-member claude west rpm=7/min tpm=9/min")
    run("pool set-member claude west tpm=10/min")
    run("pool set-member claude west --weight 2")
    run("pool set claude --description ours")
    pool = Pool.objects.get()
    assert (pool.load_balancing, pool.failover, pool.description) == ("weighted", True, "ours")
    assert Resource.objects.get().pool == pool
    east, west = PoolMember.objects.order_by("order")
    assert (east.weight, east.config, west.weight) == (3, {"region": "east"}, 2)
    assert json.loads(run("pool get claude --format json").out)[1]["limits"] == ["tpm=10/min"]
    run("pool disable claude east west")
    assert json.loads(run("pool list --format json").out)[0]["enabled"] == 0
    assert run("check claude").code == 3
    run("pool enable claude east")
    assert list(limits.status("claude").members) == ["east"]
    assert run("pool disable claude east north").err == "The pool claude has no member north.\n"
    assert run("pool set-member claude west --weight 99999").code == 2
    assert run("pool set-member claude west db=1:shared").code == 2
    dry = run("pool remove-member claude west --dry-run")
    assert (dry.code, PoolMember.objects.count()) == (0, 2)
    run("pool remove-member claude east west --yes")
    assert "The pool claude has no members." in run("pool get claude").err
    assert run("pool delete claude --yes").code == 1
    Resource.objects.get().delete()
    assert run("pool delete claude --dry-run").code == 0
    assert run("pool delete claude --yes").code == 0
    assert run("pool list").err == "There are no pools.\n"


def test_a_change_is_reverted_by_its_number() -> None:
    run("resource set api rpm=5/min")
    run("resource set api rpm=6/min")
    number = AuditEvent.objects.latest("number").number
    assert "rpm=6/min  rpm=5/min" in run(f"audit revert {number} --dry-run").out
    assert run(f"audit revert {number}").code == 2
    assert run(f"audit revert {number} --yes --reason 'it was better'").code == 0
    assert list(limits.limit_set("api")) == [RPM]
    assert run(f"audit revert {number} --yes").err == "resource api already is as it was before this event\n"
    run("resource set api rpm=7/min")
    assert "has been changed since" in run(f"audit revert {number - 1} --yes").err
    latest = AuditEvent.objects.latest("number")
    assert (latest.source, latest.actor) == ("command", actor())


def test_the_head_of_the_log_is_signed_again_once_that_is_confirmed(settings: Settings) -> None:
    run("resource set api calls=5/min")
    settings.SECRET_KEY = "another"
    assert run("audit verify").code == 3
    assert run("audit sign").code == 2
    assert run("audit sign --yes").code == 0
    assert run("audit verify").code == 0


def test_the_audit_log_is_protected_by_the_database_until_that_is_removed() -> None:
    run("resource set api rpm=5/min")
    assert run("audit protect").out == "The database protects the log.\n"
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM limits_app_auditevent")
    assert json.loads(run("audit protect --remove --format json").out) == {"protected": False}
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM limits_app_auditevent")


def test_the_environment_does_not_set_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody else")
    assert actor() == pwd.getpwuid(os.getuid()).pw_name


def test_the_actor_is_the_user_id_or_the_login_without_a_user_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert actor() == "uid 4000000"
    without_package(monkeypatch, "pwd")
    monkeypatch.setattr(os, "getlogin", lambda: "anna")
    assert actor() == "anna"


def test_a_site_without_time_zones_is_given_moments_of_its_own(settings: Settings) -> None:
    settings.USE_TZ = False
    run("system set rpm=4/min")
    assert run("boost user:1 rpm=5/min --for 2d --reason x").code == 0
    assert run("resource set api rpm=5/min --from 2099-01-31T12:00+01:00").code == 0
    assert [policy.valid_from or policy.valid_until for policy in Policy.objects.filter(resource__isnull=False)] == [
        datetime(2099, 1, 31, 11)  # noqa: DTZ001 - as the site has it
    ]
    assert len(json.loads(run("audit list --since 1h --format json").out)) == 5
    assert run("usage --since 2026-01-31").code == 0


def test_policies_with_hours_or_dates_are_deleted_by_their_words() -> None:
    run("system set rpm=5/min")
    run("system set rpm=9/min --hours sat --time-zone UTC")
    run("system set rpm=7/min --from 2990-01-01 --until 2999-01-01")
    assert "at 2980-01-01" in run("system delete --at 2980-01-01T00:00+00:00 --yes").err
    assert "has the hours sun" in run("system delete --hours sun --yes").err
    assert run("system delete --at 2995-01-01 --yes").code == 0
    assert run("system delete --hours sat --yes").code == 0
    [left] = json.loads(run("system get --format json").out)
    assert left["limits"] == ["rpm=5/min"]


def test_a_boost_ends_by_itself_or_is_ended() -> None:
    run("resource set api calls=3/min")
    run("entity set user:1 rpm=5/min --on api --extends")
    assert run("boost user:1 rpm=50/min --on api --for 2h --reason demo").code == 0
    assert set(limits.limit_set("api", "user:1")) == {RateLimit("rpm", 50, 60), CallLimit(3, 60)}
    until = Policy.objects.get(valid_until__isnull=False).valid_until
    assert timedelta(minutes=119) < until - timezone.now() <= timedelta(hours=2)
    assert run("boost user:1 rpm=60/min --on api --for 1h --reason again").code == 2
    assert run("boost user:1 --on api --end").code == 2
    assert run("boost user:1 --on api --end --dry-run").code == 0
    assert RateLimit("rpm", 50, 60) in set(limits.limit_set("api", "user:1"))
    assert run("boost user:1 --on api --end --yes --reason over").code == 0
    assert set(limits.limit_set("api", "user:1")) == {RPM, CallLimit(3, 60)}
    assert run("boost user:1 --end --yes").err == "user:1 on all resources has no active boost.\n"


def test_a_reset_reports_its_result_to_programs() -> None:
    run("resource set api rpm=5/min")
    assert json.loads(run("reset api --yes --once x --format json").out) == {"done": True}
    assert json.loads(run("reset api --yes --once x --format json").out) == {"done": False}
    assert run("reset api --yes --format csv").out == "done\nyes\n"
    assert run("reset ipa --yes").err == "Reset.\nThere are no limits here. Check the name of the resource.\n"


def test_a_reset_of_limits_in_code_has_no_note() -> None:
    limits.acquire("exports", entity="user:1", default_limits="5/min").release()
    assert run("reset exports --entity user:1 --yes").err == "Reset.\n"


def test_totals_are_reset_without_a_resource() -> None:
    limits.set_system_limits([CallLimit(9, 86_400)], counted="total")
    limits.acquire("api", entity="user:1")
    assert run("reset --total --entity user:1 --dry-run --format csv").out.startswith("key,used\ncall_count,")
    assert run("reset --total --entity user:1 --yes").err == "Reset.\n"
    assert limits.status("api", entity="user:1").limits["total:call_count"]["used"] == 0
    assert "requests, over all resources" in run("status api --entity user:1").out


@pytest.mark.parametrize("options", ["--enforcement off", "--rollout 10"])
def test_a_policy_in_force_is_weakened_only_when_that_is_confirmed(
    options: str, caplog: pytest.LogCaptureFixture
) -> None:
    run("resource set api calls=5/min")
    asked = run(f"resource set api calls=5/min {options}")
    assert asked.code == 2
    assert "Saving " in asked.err
    assert "Without it no policy applies" in asked.err
    assert "pass --yes" in asked.err
    policy = Policy.objects.get()
    assert (policy.enforcement, policy.rollout_percent) == ("enforce", 100)
    assert run(f"resource set api calls=5/min {options} --dry-run").code == 0
    assert run(f"resource set api calls=5/min {options} --until 2999-01-01").code == 0  # another policy
    assert caplog.text.count("Saving ") == 1  # of the dry run
    assert run(f"resource set api calls=5/min {options} --yes").code == 0
    assert caplog.text.count("Saving ") == 2
    assert run(f"resource set api calls=5/min {options}").code == 0


def test_billing_date_of_an_entity_is_set_and_removed() -> None:
    run("resource set api tokens=5/month:from=client")
    assert run("entity billing tenant:acme 2026-01-15T06:00+01:00").code == 0
    assert limits.status("api", entity="tenant:acme").limits["tokens"]["starts"] == "15+5h"
    assert run("entity billing tenant:acme ''").code == 0
    assert Entity.objects.get().billing_from is None
    assert "is not a valid date or time" in run("entity billing tenant:acme soon").err
