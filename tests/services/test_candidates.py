"""Candidates: evaluated beside the policy in force, counted for all processes, promoted, discarded and reverted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import CallLimit, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit, limits, signals
from limits_app.audit import revert
from limits_app.engine.errors import InvalidLimit
from limits_app.models import AuditEvent, Candidate, EvaluatedEntity, EvaluationCount, EvaluationKind, Policy
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.usage.evaluation_counter import Evaluations, digest_of, evaluations
from limits_app.usage.evaluation_counter import entities as entities_of
from tests.commands.running import run

pytestmark = pytest.mark.slow

FIXED = RateLimitAlgorithm.FIXED_WINDOW


@pytest.fixture(autouse=True)
def nothing_counted() -> Iterator[None]:
    evaluations.clear()
    yield
    evaluations.clear()


@pytest.fixture
def policy() -> Policy:
    return limits.set_resource_limits("api", [CallLimit(3, 3600)])


def report() -> limits.CandidateReport:
    evaluations.flush()
    [found] = limits.candidates()
    return found


def allowed(times: int, entity: str | None = None, **options: Any) -> list[bool]:
    return [limits.try_acquire("api", entity=entity, **options).successful for _ in range(times)]


def test_candidate_counts_expected_rejections_and_rejects_nothing(policy: Policy) -> None:
    limits.set_candidate(policy, [CallLimit(1, 3600)])
    assert allowed(2) == [True, True]
    found = report()
    assert (found.evaluated, found.rejected, found.rejected_percent) == (2, 1, 50.0)
    assert found.by_key == {"call_count": (2, 1)}
    assert found.as_dict()["by_key"] == {"call_count": {"evaluated": 2, "rejected": 1}}
    assert report() == found, "written once"


def candidates_of_explanation() -> list[dict[str, object] | None]:
    considered: Any = limits.explain("api").as_dict()["considered"]
    return [one["candidate"] for one in considered]


def test_explain_names_a_candidate_that_is_tested_or_watched(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h", revert_percent=50)
    assert "the policy of the resource (limits, with the candidate calls=1/h)." in limits.explain("api").text()
    tested = {"limits": ["calls=1/h"], "percent": 100, "promoted": False, "watched_until": None}
    assert candidates_of_explanation() == [tested]
    limits.promote_candidate(policy)
    assert "(limits, with the enforced candidate calls=1/h, watched until " in limits.explain("api").text()
    [watched] = candidates_of_explanation()
    assert watched is not None
    assert watched == {**tested, "promoted": True, "watched_until": watched["watched_until"]}
    limits.revert_candidate(policy)
    assert "candidate" not in limits.explain("api").text()
    assert candidates_of_explanation() == [None]


def test_a_looser_candidate_evaluates_rejected_requests_too(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=5/h")
    assert allowed(8) == [True] * 3 + [False] * 5
    assert (report().evaluated, report().rejected) == (8, 3)


def test_permits_of_a_rejected_request_are_not_held_by_the_candidate() -> None:
    policy = limits.set_resource_limits("api", [CallLimit(1, 3600)])
    limits.set_candidate(policy, "slots=2")
    held = [limits.try_acquire("api") for _ in range(5)]
    assert (report().evaluated, report().rejected) == (5, 0)
    for one in held:
        one.release()


def test_a_request_that_two_limits_reject_counts_once(policy: Policy) -> None:
    limits.set_resource_limits("api", [CallLimit(9, 3600), RateLimit("tpm", 100, 60)])
    limits.set_candidate(policy, ["calls=1/h", RateLimit("tpm", 5, 60)])
    for _ in range(2):
        limits.try_acquire("api", requested={"tpm": 5})
    assert (report().evaluated, report().rejected) == (2, 1)
    assert report().by_key == {"call_count": (2, 1), "tpm": (2, 1)}


def test_a_percentage_of_entities_is_evaluated(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h", percent=40)
    for number in range(100):
        allowed(1, f"user:{number}")
    first = report()
    assert 20 < first.evaluated < 60
    assert first.rejected == 0
    for number in range(100):
        allowed(1, f"user:{number}")
    assert (report().evaluated, report().rejected) == (2 * first.evaluated, first.evaluated)


def test_only_the_candidate_of_the_policy_that_applies_is_evaluated(policy: Policy) -> None:
    system = limits.set_system_limits([CallLimit(9, 60)])
    limits.set_candidate(system, "calls=1/h")
    allowed(2)
    assert report().evaluated == 0
    assert [limits.try_acquire("other").successful for _ in range(2)] == [True, True]
    assert (report().evaluated, report().rejected) == (2, 1)


@pytest.mark.parametrize("effect", ["unlimited", "blocked"])
def test_a_policy_without_limits_can_have_a_candidate(policy: Policy, effect: str) -> None:
    limits.set_resource_limits("api", [], effect=effect)
    limits.set_candidate(policy, "calls=1/h")
    allowed(2)
    assert (report().evaluated, report().rejected) == (2, 1)
    limits.promote_candidate(policy)
    assert allowed(2, "user:2") == [True, False]
    limits.revert_candidate(policy)
    assert allowed(2, "user:2") == [effect == "unlimited"] * 2


def test_a_policy_in_shadow_mode_is_counted_for_all_processes() -> None:
    policy = limits.set_resource_limits("api", [CallLimit(1, 3600)], enforcement="shadow")
    assert allowed(3) == [True] * 3
    evaluations.flush()
    rows = EvaluationCount.objects.values_list("policy_id", "candidate_id", "kind", "key", "evaluated", "rejected")
    assert {*rows} == {
        (policy.pk, 0, EvaluationKind.SHADOW, "", 3, 2),
        (policy.pk, 0, EvaluationKind.SHADOW, "call_count", 3, 2),
    }


def test_promoting_and_reverting(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h", revert_percent=50)
    assert limits.promote_candidate(policy, actor="ann", reason="enough").pk == policy.pk
    assert allowed(2, "user:1") == [True, False]
    assert (report().state, report().evaluated, report().rejected) == ("promoted", 2, 1)
    assert report().previous_limits == "calls=3/h"
    with pytest.raises(InvalidLimit, match="has no candidate that is testing"):
        limits.promote_candidate(policy)
    event = AuditEvent.objects.filter(object_type="policy").order_by("-number")[0]
    assert (event.actor, event.reason) == ("ann", "enough")
    limits.revert_candidate(policy)
    assert allowed(4, "user:1").count(True) == 2
    assert report().state == "reverted"
    with pytest.raises(InvalidLimit, match="has no candidate that is enforced"):
        limits.revert_candidate(policy)


def test_a_promotion_is_reverted_from_the_audit_log_too(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h")
    limits.promote_candidate(policy)
    revert(AuditEvent.objects.filter(object_type="policy").order_by("-number")[0])
    assert allowed(4, "user:1") == [True] * 3 + [False]
    assert Candidate.objects.get().state == "testing"


def test_a_policy_that_was_changed_since_is_not_reverted(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h")
    limits.promote_candidate(policy)
    limits.set_resource_limits("api", [CallLimit(2, 3600)])
    with pytest.raises(InvalidLimit, match="were changed since the candidate was enforced"):
        limits.revert_candidate(policy)


def test_discarding(policy: Policy) -> None:
    assert not limits.discard_candidate(policy)
    limits.set_candidate(policy, "calls=1/h")
    allowed(1)
    assert limits.discard_candidate(policy)
    assert limits.candidates() == []
    assert allowed(3) == [True, True, False]
    limits.set_candidate(policy, "calls=1/h")
    assert report().evaluated == 0, "a new candidate starts from 0"


@pytest.mark.parametrize(
    ("entities", "rejected", "ends", "reverted"),
    [
        pytest.param(20, 3, False, True, id="more_than_the_share_of_twenty"),
        pytest.param(20, 2, False, False, id="exactly_the_share"),
        pytest.param(19, 19, False, False, id="too_few_so_far"),
        pytest.param(19, 19, True, True, id="few_at_the_end"),
        pytest.param(2, 2, True, True, id="two_at_the_end"),
        pytest.param(5, 1, True, False, id="one_of_few_at_the_end"),
        pytest.param(1, 1, True, False, id="the_only_one"),
        pytest.param(3, 0, True, False, id="none_rejected"),
    ],
)
def test_auto_revert(
    policy: Policy, entities: int, rejected: int, ends: bool, reverted: bool, heard: Callable[..., list[object]]
) -> None:
    told = heard(signals.candidate_reverted, "policy")
    limits.set_candidate(policy, "calls=3/h", revert_percent=10)
    limits.set_resource_limits("api", [CallLimit(100, 3600)])
    limits.promote_candidate(policy)
    for number in range(entities):
        allowed(4 if number < rejected else 3, f"user:{number}")
    if ends:
        evaluations.flush()
        Candidate.objects.update(watched_until=timezone.now() - timedelta(seconds=1))
        for number in range(30):  # it is over: these are not counted
            allowed(4, f"late:{number}")
    limits.roll_up()
    limits.roll_up()
    assert told == (["resource api"] if reverted else [])
    assert Policy.objects.get().limits.get().definition().capacity == (100 if reverted else 3)
    if reverted:
        event = AuditEvent.objects.filter(object_type="policy").order_by("-number")[0]
        assert event.source == "auto-revert"
        assert event.reason == f"requests of {rejected} of {entities} entities were rejected"


@pytest.mark.parametrize("others", [0, 1, 30])
@pytest.mark.parametrize("ends", [False, True])
def test_one_client_cannot_have_a_candidate_reverted(policy: Policy, others: int, ends: bool) -> None:
    limits.set_candidate(policy, "calls=3/h", revert_percent=1)
    limits.promote_candidate(policy)
    for number in range(others):
        allowed(1, f"user:{number}")
    processes = [evaluations, Evaluations(), Evaluations()]
    allowed(500, "user:greedy")
    for process in processes[1:]:  # it sends its requests to all processes
        row = Candidate.objects.get()
        for _ in range(50):
            process.note([((policy.pk, row.pk, EvaluationKind.PROMOTED), "call_count", True)], "user:greedy")
        process.flush()
    evaluations.flush()
    if ends:
        Candidate.objects.update(watched_until=timezone.now() - timedelta(seconds=1))
    limits.roll_up()
    assert report().state == "promoted"
    assert report().rejected >= 500


def test_the_entities_of_all_processes_are_counted_together(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=3/h", revert_percent=50)
    limits.promote_candidate(policy)
    row = Candidate.objects.get()
    counted = (policy.pk, row.pk, EvaluationKind.PROMOTED)
    for number in range(4):
        process = Evaluations()
        for entity in (f"user:{number}", "user:all", None):
            process.note([(counted, "call_count", number == 1), (counted, "tpm", False)], entity)
        process.flush()
    assert entities_of([row.pk]) == {row.pk: (6, 3)}


def test_the_entities_of_a_process_are_bounded(policy: Policy) -> None:
    process = Evaluations()
    for number in range(1_002):
        process.note([((policy.pk, 7, EvaluationKind.PROMOTED), "call_count", True)], f"user:{number}")
        process.note([((policy.pk, 8, EvaluationKind.CANDIDATE), "call_count", True)], f"user:{number}")
        if number == 500:
            process.flush()
    process.flush()
    assert entities_of([7, 8]) == {7: (1_000, 1_000)}


def test_the_entities_of_a_candidate_are_kept_while_it_is_watched(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=3/h", revert_percent=50)
    limits.promote_candidate(policy)
    allowed(1, "user:1")
    evaluations.flush()
    limits.prune_usage()
    assert [str(one) for one in EvaluatedEntity.objects.all()] == [f"0 of 1 for {digest_of('user:1')}"]
    Candidate.objects.update(watched_until=timezone.now() - timedelta(days=2))
    limits.prune_usage()
    assert not EvaluatedEntity.objects.exists()


@pytest.mark.parametrize(
    ("evaluated", "capacity", "ends_in", "reverted"),
    [
        pytest.param(20, 10, 60, False, id="as many as the share"),
        pytest.param(20, 9, 60, True, id="one more than the share"),
        pytest.param(19, 9, 60, False, id="one too few before the end"),
        pytest.param(19, 9, 0, True, id="few at the end"),
        pytest.param(19, 9, 0.000001, False, id="few before the end"),
        pytest.param(1, 1, 0, False, id="none rejected at the end"),
    ],
)
def test_auto_revert_at_its_thresholds(
    policy: Policy, evaluated: int, capacity: int, ends_in: float, reverted: bool
) -> None:
    limits.set_candidate(policy, f"calls={capacity}/d:fixed_window:shared", revert_percent=50)
    limits.promote_candidate(policy)
    for number in range(evaluated):
        limits.try_acquire("api", entity=f"user:{number}")
    evaluations.flush()
    now = timezone.now()
    Candidate.objects.update(watched_until=now + timedelta(seconds=ends_in))
    with time_machine.travel(now, tick=False):
        assert (report().evaluated, report().rejected) == (evaluated, evaluated - capacity)
        assert [one.pk for one in limits.revert_candidates()] == ([policy.pk] if reverted else [])


def test_limits_that_were_changed_after_the_promotion_are_not_reverted_automatically(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h", revert_percent=10)
    limits.promote_candidate(policy)
    for number in range(30):
        assert allowed(2, f"user:{number}") == [True, False]
    limits.set_resource_limits("api", [CallLimit(2, 3600)])
    limits.roll_up()
    assert (policy.limits.get().definition().capacity, report().state) == (2, "promoted")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limits": ""}, "limits"),
        ({"limits": "calls=1/fortnight"}, "limits"),
        ({"limits": "calls=1/h calls=2/h"}, "limits"),
        ({"limits": "calls=1/h", "percent": 0}, "percent"),
        ({"limits": "calls=1/h", "revert_percent": 101}, "revert_percent"),
        ({"limits": "calls=1/h", "revert_minutes": 0}, "revert_minutes"),
    ],
)
def test_an_invalid_candidate_replaces_nothing(policy: Policy, given: dict[str, Any], message: str) -> None:
    limits.set_candidate(policy, "calls=1/h")
    with pytest.raises(InvalidLimit, match=message):
        limits.set_candidate(policy, **given)
    assert [one.limits for one in limits.candidates()] == ["calls=1/h"]


@pytest.mark.parametrize("given", ["1/h, db=3", "1 / h;db=3", ["1/h", ResourceLimit("db", 3)]])
def test_a_candidate_has_limits_in_every_form(policy: Policy, given: Any) -> None:
    limits.set_candidate(policy, given)
    limits.promote_candidate(policy)
    assert [one.notation() for one in policy.limits.order_by("key")] == ["calls=1/h", "db=3"]


def test_limits_of_an_entity_or_a_plan_are_not_shared() -> None:
    for policy in (limits.set_entity_limits("user:1", ["calls=5/h"]), limits.set_plan_limits("pro", ["calls=5/h"])):
        with pytest.raises(InvalidLimit, match="cannot be shared"):
            limits.set_candidate(policy, "calls=1/h:shared")
        with pytest.raises(InvalidLimit, match="amount"):
            limits.set_candidate(policy, "calls=many/h")


def test_an_invalid_candidate_is_not_evaluated(policy: Policy, caplog: pytest.LogCaptureFixture) -> None:
    limits.set_candidate(policy, "calls=1/h")
    Candidate.objects.update(limits="nonsense")
    assert allowed(1) == [True]
    assert "is not evaluated" in caplog.text
    with pytest.raises(IntegrityError):
        Candidate.objects.update(percent=0)


def test_the_emergency_switch_suspends_candidates(policy: Policy) -> None:
    limits.set_candidate(policy, "calls=1/h")
    limits.set_emergency("shadow", reason="an outage")
    allowed(2)
    assert report().evaluated == 0


def test_counts_that_cannot_be_written_are_kept(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_candidate(policy, "calls=1/h")
    allowed(2)
    with monkeypatch.context() as failing:
        failing.setattr("limits_app.usage.evaluation_counter.upsert", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluations.flush()
    allowed(1)
    assert (report().evaluated, report().rejected) == (3, 2)


def test_counts_are_equal_to_a_replay(policy: Policy, clock: FakeClock) -> None:
    candidate = CallLimit(2, 10, FIXED)
    limits.set_candidate(policy, [candidate])
    replayed = LimitSet([candidate], store=MemoryStore(clock=clock))
    rejected = 0
    for step in (0, 1, 4, 4, 4, 11, 2, 9, 0, 0, 0, 30, 1):
        clock.advance(seconds=step)
        limits.try_acquire("api")
        rejected += not replayed.try_acquire()
    assert (report().evaluated, report().rejected) == (13, rejected)


def test_counts_begin_a_row_each_hour(policy: Policy) -> None:
    hours = iter([3600.0, 7199.0, 7200.0])
    counter = Evaluations(now=lambda: next(hours))
    for rejected in (True, False, True):
        counter.note([((policy.pk, 7, EvaluationKind.CANDIDATE), "call_count", rejected)])
    assert counter.flush() == 3
    rows = EvaluationCount.objects.filter(key="").order_by("hour").values_list("evaluated", "rejected")
    assert [*rows] == [(2, 1), (1, 1)]
    assert str(EvaluationCount.objects.order_by("hour")[0]).startswith("1 of 2 in the hour 1970-01-01 01:00")


def test_the_command_manages_candidates(policy: Policy) -> None:
    assert run("candidates list").err == "There are no candidates.\n"
    assert run(f"candidates set {policy.pk} calls=1/h --revert-percent 5 --percent 50").code == 0
    assert Candidate.objects.get().revert_percent == 5
    assert run(f"candidates set {policy.pk} calls=1/fortnight").code == 2
    assert "calls=1/h" in run("candidates list").out
    assert run(f"candidates promote {policy.pk}").code == 2
    assert run(f"candidates promote {policy.pk} --yes").code == 0
    assert '"state": "promoted"' in run("candidates list --format json").out
    assert run(f"candidates revert {policy.pk} --yes --reason complaints").code == 0
    assert run(f"candidates discard {policy.pk} --dry-run").code == 0
    assert run(f"candidates discard {policy.pk} --yes").code == 0
    assert run(f"candidates discard {policy.pk} --yes").code == 1
    assert run("candidates promote 4711 --yes").code == 2
    assert AuditEvent.objects.filter(source="command").count() == 4


def test_the_api_manages_candidates(policy: Policy) -> None:
    client = APIClient()
    client.force_authenticate(User.objects.create_superuser("ann"))

    def post(action: str, **given: Any) -> Any:
        sent = {"policy": policy.pk, "action": action, **given}
        return client.post("/limits/api/v1/candidates/", sent, format="json")

    assert [one["limits"] for one in post("set", limits="calls=1/h").json()] == ["calls=1/h"]
    for wrong in ({}, {"limits": "calls=1/fortnight"}, {"limits": "calls=1/h", "percent": 0}):
        assert post("set", **wrong).status_code == 400
    assert post("promot").status_code == 400
    assert post("promote", limits="calls=1/h").status_code == 400
    assert post("promote", policy=4711).status_code == 400
    assert post("promote").json()[0]["state"] == "promoted"
    assert post("promote").status_code == 400
    assert post("revert").json()[0]["state"] == "reverted"
    assert post("discard").json() == client.get("/limits/api/v1/candidates/").json() == []
    assert {one.actor for one in AuditEvent.objects.filter(source="api")} == {"ann"}


def test_the_admin_shows_rejections_of_a_candidate_and_audits_decisions(policy: Policy, client: Client) -> None:
    client.force_login(User.objects.create_superuser("ann"))
    candidate = limits.set_candidate(policy, "calls=1/h")
    allowed(2)
    evaluations.flush()
    assert "50 %" in client.get(reverse("admin:limits_app_candidate_changelist")).content.decode()
    for decision in ("promote", "revert"):
        confirmed = {"revert_minutes": "10", "confirmed": "1"}
        client.post(reverse(f"admin:limits_app_candidate_{decision}", args=[candidate.pk]), confirmed)
    assert AuditEvent.objects.filter(source="admin", actor="ann", object_type="policy").count() == 2


def test_counts_are_kept_as_long_as_hourly_usage(policy: Policy, settings: Settings) -> None:
    limits.set_candidate(policy, "calls=1/h")
    allowed(1)
    evaluations.flush()
    EvaluationCount.objects.update(hour=timezone.now() - timedelta(hours=3))
    for kept, left in ((None, 2), (4, 2), (2, 0)):
        settings.LIMITS = {**settings.LIMITS, "USAGE_HOURS_KEPT": kept}
        limits.prune_usage()
        assert EvaluationCount.objects.count() == left
