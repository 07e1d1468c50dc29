"""Simulation decides as the stores do, and says who would be refused, by what and when."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine import NOTHING
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.keys import scope_of, shared_scope
from limits_app.engine.notation import parse_limit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.models import BucketKind, Policy, UsagePeriod, UsageSnapshot
from limits_app.services.limits_file import apply, read_content
from limits_app.services.limits_file.stored import client_policies
from limits_app.services.simulation.events import SimulatedRequest, csv_events, recorded_events
from limits_app.services.simulation.proposal import Proposal
from limits_app.services.simulation.replay import replay
from limits_app.services.simulation.simulation_report import EVENTS, SimulationReport
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisStore
from limits_app.testing import FakeClock
from tests.commands.running import run
from tests.replacing import type_in
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.support import store_on

START: Final = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z
SECOND: Final = 1_000_000


def at(
    seconds: float, entity: str | None = "u", resource: str = "api", hold: float = 0, **wanted: int
) -> SimulatedRequest:
    amounts = tuple((key, amount * 1000) for key, amount in wanted.items())
    return SimulatedRequest(START + round(seconds * SECOND), resource, entity, amounts, round(hold * SECOND))


def decisions(proposal: Proposal, *events: SimulatedRequest) -> str:
    """One letter for each event: y where it is admitted."""
    told: list[bool] = []
    replay(events, proposal, decided=lambda _, admitted: told.append(admitted))
    return "".join("ny"[one] for one in told)


def proposed(text: str) -> Proposal:
    return Proposal.of_content(read_content(text))


MIXES: Final = [
    ["calls=3/s", "tpm=2k/min"],
    ["calls=20/10s:sliding_window", "tpm=3k/min:gcra"],
    ["calls=20/10s:fixed_window", "tpm=3k/min:leaky_bucket:burst=900"],
    ["budget=20k/hour@Europe/Berlin", "tpm=5k/min:soft", "calls=60/min:shared"],
    ["calls=0.5/s:burst=4", "budget=9k/20min:session"],
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "process", "redis"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, FakeClock]]:
    """Each store of a live site, on a clock that the test moves."""
    clock = FakeClock(START)
    if request.param == "memory":
        yield MemoryStore(clock=clock), clock
        return
    if request.param == "process":
        store: ProcessStore | RedisStore = ProcessStore(tmp_path, clock=clock, map_megabytes=2)
    else:
        store = store_on(request.getfixturevalue("redis"), clock=clock)
    yield store, clock
    store.close()


@pytest.mark.parametrize("texts", MIXES, ids=" ".join)
def test_decisions_are_those_of_the_live_stores(texts: list[str], live: tuple[Store, FakeClock]) -> None:
    """Two thousand requests to each of five mixes: ten thousand in all."""
    store, clock = live
    random = Random(0)
    now, events = START, []
    for _ in range(2000):
        now += random.randrange(0, 900_000)
        asked = {key: random.choice([0, 100, 500, 6000]) for key in ("tpm", "budget") if random.random() < 0.8}
        wanted = tuple((key, amount * 1000) for key, amount in asked.items())
        events.append(SimulatedRequest(now, "api", f"user:{random.randrange(4)}", wanted))
    sets: dict[str | None, LimitSet] = {}
    for event, admitted in decided(events, texts):
        clock.move(event.now_us - clock.now_us)
        if event.entity not in sets:
            sets[event.entity] = LimitSet.composed(scoped(texts, event.entity), store)
        asked = {key: milli // 1000 for key, milli in event.requested if key in " ".join(texts)}
        assert admits(sets[event.entity], asked) is admitted, event


def decided(events: list[SimulatedRequest], texts: list[str]) -> Iterator[tuple[SimulatedRequest, bool]]:
    told: list[tuple[SimulatedRequest, bool]] = []
    replay(events, Proposal.of_limits(map(parse_limit, texts)), decided=lambda *one: told.append(one))
    assert {admitted for _, admitted in told} == {True, False}
    yield from told


def scoped(texts: list[str], entity: str | None) -> Iterator[ScopedLimits]:
    noted = sorted(map(parse_limit, texts), key=lambda one: one.limit.key)
    yield ScopedLimits(scope_of("api", entity), schema_of(tuple(one.limit for one in noted if not one.shared)))
    for one in noted:
        if one.shared:
            yield ScopedLimits(shared_scope("api", one.limit.key), schema_of((one.limit,)))


def admits(limit_set: LimitSet, asked: dict[str, int]) -> bool:
    """Whether a store admits as much; what is asked for is used."""
    try:
        acquisition = limit_set.try_acquire(asked or NOTHING)
    except ValueError:
        return False
    if acquisition.successful:
        acquisition.update(asked)
        acquisition.release()
    return acquisition.successful


def test_a_refusal_charges_nothing_in_any_scope() -> None:
    proposal = Proposal.of_limits([parse_limit("calls=2/min"), parse_limit("t=5/min:shared")])
    assert decisions(proposal, at(0, t=5), at(1, t=1), at(2, t=1), at(3), at(4)) == "ynnyn"


def test_permits_are_held_for_the_duration_of_the_event() -> None:
    proposal = Proposal.of_limits([parse_limit("c=1:hold=5s")])
    assert decisions(proposal, at(0, hold=3), at(2, hold=1), at(3, hold=60), at(7, hold=1), at(8, hold=1)) == "ynyny"
    assert decisions(proposal, at(0), at(0), at(0)) == "yyy"


def test_parents_are_charged_too_and_rows_block_or_free() -> None:
    proposal = proposed(
        """
        entities:
          a: {parent: t, cascade: true}
          b: {parent: t, cascade: true}
          blocked: {blocked: true}
          free: {unlimited: true}
        policies:
        - limits: [calls=3/min]
        - {entity: t, limits: [calls=4/min]}
        """
    )
    assert decisions(proposal, *[at(0, "a")] * 4) == "yyyn"
    assert decisions(proposal, *[at(0, who) for who in "aabbab"]) == "yyyynn"
    assert decisions(proposal, *[at(0, "blocked"), at(0, "free"), at(0, "free"), at(0, None)]) == "nyyy"


def test_plans_and_patterns_are_those_of_the_live_site() -> None:
    proposal = proposed(
        """
        plans:
          pro: {}
        entities:
          t: {plan: pro}
          a: {parent: t}
          b: {}
        policies:
        - limits: [calls=1/min]
        - {plan: pro, limits: [calls=2/min]}
        - {entity: "key:*", limits: [calls=3/min]}
        """
    )
    assert [decisions(proposal, *[at(0, who)] * 4) for who in ("t", "a", "b", "c")] == ["yynn", "yynn", "ynnn", "ynnn"]
    assert decisions(proposal, *[at(0, who) for who in ("key:1", "key:2") * 4]) == "yyyyyynn"


def test_dates_and_hours_change_the_limits_and_keep_the_use() -> None:
    proposal = proposed(
        """
        policies:
        - limits: [calls=1/h:fixed_window]
        - {valid_from: 2026-03-01T12:10:00Z, valid_until: 2026-03-01T12:20:00Z, limits: [calls=3/h:fixed_window]}
        - {resource: night, weekly_hours: mon 00:00-24:00, time_zone: UTC, effect: blocked}
        """
    )
    assert decisions(proposal, at(0), at(1), at(600), at(601), at(602), at(1200)) == "ynyynn"
    assert decisions(proposal, at(0, resource="night"), at(43_200, resource="night")) == "yn"


def test_a_limit_that_gives_way_to_permits_forgets_them() -> None:
    proposal = proposed(
        """
        policies:
        - limits: [c=1]
        - {valid_from: 2026-03-01T12:00:10Z, valid_until: 2026-03-01T12:01:00Z, limits: [calls=9/s]}
        """
    )
    assert decisions(proposal, at(0, hold=30), at(11), at(31), at(61, hold=1)) == "yyyy"


def test_rollouts_take_in_always_the_same_entities() -> None:
    proposal = proposed("policies: [{effect: blocked, rollout_percent: 30}]")
    told = decisions(proposal, *[at(0, f"user:{number}") for number in range(400)])
    assert 80 < told.count("n") < 160
    assert told == decisions(proposal, *[at(9, f"user:{number}") for number in range(400)])


def test_limits_of_the_site_are_simulated_without_a_proposal() -> None:
    apply(read_content("policies: [{resource: api, limits: [calls=1/min]}, {effect: unlimited}]"))
    assert decisions(Proposal.of_site(), at(0), at(1), at(1, resource="other")) == "yny"


def test_only_policies_that_may_apply_to_one_resource_are_read_for_it() -> None:
    own = "{resource: api, entity: 'user:1', limits: [calls=1/min]}, {entity: 'user:2', limits: [calls=2/min]}"
    others = ", ".join(f"{{resource: r{number}, entity: 'user:1', effect: blocked}}" for number in range(5))
    apply(read_content(f"policies: [{own}, {others}]"))
    read = [entry.key[:2] for part in client_policies(DEFAULT_DB_ALIAS, resource="api") for entry in part]
    assert sorted(read) == [("", "user:2"), ("api", "user:1")]
    events = [at(second, f"user:{user}", "api") for second in range(3) for user in (1, 2)]
    assert decisions(Proposal.of_site(resource="api"), *events) == decisions(Proposal.of_site(), *events) == "yynynn"


def test_hours_that_cannot_be_read_never_hold() -> None:
    Policy.objects.create(weekly_hours="mon-sun", time_zone="UTC", effect="blocked")
    QuerySet.update(Policy.objects.all(), weekly_hours="sometimes")
    assert decisions(Proposal.of_site(), at(0)) == "y"


def test_circle_of_parents_ends() -> None:
    rows = "entities: {a: {parent: b, cascade: true}, b: {parent: a, cascade: true}}"
    assert decisions(proposed(f"{rows}\npolicies: [{{limits: [calls=1/min]}}]"), at(0, "a"), at(0, "b")) == "yn"


def test_never_is_counted_apart() -> None:
    report = replay([at(0, t=9), at(1, t=2), at(1, t=2)], Proposal.of_limits([parse_limit("t=3/min")]))
    [refused] = report.refusals()
    assert (refused.count, refused.never, refused.key, refused.entity) == (2, 1, "t", "u")
    assert refused.first == datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("minutes", "bars", "step"),
    [([0], 1, 1), ([0, 39], 40, 1), ([0, 40], 9, 5), ([0, 60 * 24 * 29], 30, 1440), ([0, 10**8], 40, 2_500_001)],
)
def test_a_chart_has_few_bars_of_equal_length(minutes: list[int], bars: int, step: int) -> None:
    report = SimulationReport()
    for minute in minutes:
        report.add(EVENTS, minute, 2000, 1000)
    chart = [*report.chart()]
    assert (len(chart) <= 41, len(chart) in (bars, bars + 1)) == (True, True)
    assert sum(one.asked for one in chart) == 2 * len(minutes)
    assert {later.start - one.start for one, later in itertools.pairwise(chart)} <= {timedelta(minutes=step)}


def test_nothing_gives_an_empty_report() -> None:
    report = replay([], Proposal.of_limits([]))
    assert report.as_dict()["chart"] == []


WRONG: Final = {
    "nothing": ("", "line 1: the file must have a column “time”"),
    "no time": ("when,entity,resource\n", "line 1: the file must have a column “time”"),
    "no resource": ("time,entity\n", "line 1: the file must have a column “resource”"),
    "a column twice": ("time,resource,t,t\n", "line 1: two columns have the same name"),
    "no limit key": ("time,resource,a b\n", "line 1: the column 'a b' is not a limit key"),
    "too few cells": ("time,resource,t\n1,api\n", "line 2: it has 2 cells; the first line has 3"),
    "no moment": ("time,resource\nnoon,api\n", "line 2: Invalid isoformat string: 'noon'"),
    "no zone": ("time,resource\n2026-03-01T12:00,api\n", "line 2: '2026-03-01T12:00' has no time zone"),
    "long ago": ("time,resource\n1900-01-01T00:00Z,api\n", "line 2: '1900-01-01T00:00Z' must be a time between 1970"),
    "too late": ("time,resource\n99999999999999,api\n", "must be a time between 1970 and 2112"),
    "backwards": ("time,resource\n5,api\n4,api\n", "line 3: it is earlier than the event before it: sort"),
    "no amount": ("time,resource,t\n5,api,many\n", "line 2: amount 'many' must be a number"),
    "a negative amount": ("time,resource,t\n5,api,-1\n", "line 2: amount '-1' must be a number"),
    "no name": ("time,resource\n5,a b\n", "line 2: resource 'a b' must be a letter"),
    "a long entity": (f"time,resource,entity\n5,a,{'x' * 256}\n", "must be text of 1 to 255 characters"),
    "a huge cell": (f"time,resource\n5,{'x' * 200_000}\n", "line 2: field larger than field limit"),
}


def test_a_csv_that_cannot_be_read_is_reported_by_line(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    for name, (text, said) in WRONG.items():
        file.write_text(text)
        ran = run(f"simulate calls=1/s --csv {file}")
        assert (ran.code, ran.out, said in ran.err) == (2, "", True), f"{name}: {ran.err}"


def test_events_that_cannot_be_read_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"time,resource\n1,\xe9\n")
    for line, code, said in [
        (f"simulate --file {tmp_path}/none.yaml", 1, "cannot be read: No such file"),
        (f"simulate --csv {tmp_path}/none.csv", 1, "cannot be read: No such file"),
        (f"simulate --csv {tmp_path}/latin.csv", 2, "codec can't decode byte"),
    ]:
        ran = run(line)
        assert (ran.code, said in ran.err) == (code, True), ran.err


def test_cells_are_read_as_people_write_them() -> None:
    lines = [
        "time,calls,t,seconds,entity,resource",
        "5,,1.5k,2,,api",
        "",
        "6.5, 2 ,,,u,api",
        "1970-01-01T00:00:07Z,,,,u,b",
    ]
    assert [*csv_events(lines)] == [
        SimulatedRequest(5_000_000, "api", None, (("t", 1_500_000),), 2_000_000),
        SimulatedRequest(6_500_000, "api", "u", (("call_count", 2000),)),
        SimulatedRequest(7_000_000, "b", "u", ()),
    ]
    with pytest.raises(InvalidRequest, match="line 1"):
        [*csv_events([])]


def test_many_different_rows_are_read_though_not_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["limits_app.services.simulation.replay"], "_MOST_AMOUNTS", 1)
    lines = ["time,resource,t", *(f"{number},api,{number}" for number in range(5))]
    report = replay(csv_events(lines, most_remembered=1), Proposal.of_limits([parse_limit("t=3/d")]))
    assert report.totals[EVENTS].as_dict() == {"asked": 5, "rejected": 2, "share": 0.4}


def recorded(hour: int, key: str, units: float, entity: str = "u") -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=hour)
    whose = {"resource": "api", "bucket": BucketKind.ENTITY, "entity": entity, "key": key}
    UsageSnapshot.objects.create(period=UsagePeriod.HOUR, start=start, admitted_milli=round(units * 1000), **whose)


def test_recorded_usage_is_spread_over_its_hours() -> None:
    recorded(0, "call_count", 3)
    recorded(0, "t", 0.005)
    recorded(1, "t", 1440, "")
    events = [*recorded_events()]
    assert sum(dict(event.requested).get("call_count", 0) for event in events) == 3000
    assert sum(dict(event.requested).get("t", 0) for event in events if event.entity == "u") == 5
    assert {event.requested for event in events if event.entity is None} == {(("t", 2000),)}
    assert [event.now_us for event in events] == sorted(event.now_us for event in events)
    later = datetime(2026, 3, 1, 1, tzinfo=UTC)
    assert {event.entity for event in recorded_events(since=later)} == {None}
    assert {event.entity for event in recorded_events(until=later)} == {"u"}


def test_the_command_replays_recorded_usage() -> None:
    recorded(0, "t", 720)
    ran = run("simulate t=100/h:fixed_window calls=1/h --format json --check")
    told = json.loads(ran.out)
    assert (ran.code, told["totals"]) == (3, {"t": {"asked": 720, "rejected": 620, "share": 620 / 720}})
    assert [one["key"] for one in told["rejections"]] == ["t"]
    assert run("simulate t=1k/min --check").code == 0


def test_recorded_usage_is_reported_as_the_share_of_its_amount() -> None:
    recorded(0, "call_count", 60_000)
    recorded(0, "tokens", 600_000)
    recorded(0, "call_count", 600, entity="v")
    ran = run("simulate calls=60/min:fixed_window")
    assert "56400 of 60600 call_count would be rejected (93.1%), for 1 of 2 entities" in ran.err
    assert "0 of 600000 tokens would be rejected (0.0%)" in ran.err
    assert "events" not in ran.out + ran.err
    assert ran.out.splitlines()[1].split()[:4] == ["api", "u", "requests", "56400"]
    assert run("simulate calls=60/min --chart --format csv").out.startswith("start,call_count,rejected")
    assert "call_count would be rejected" in run("simulate calls=60/min --resource api").err
    other = run("simulate calls=60/min --resource other --check")
    assert (other.code, other.err) == (0, "No request would be rejected.\n")


def test_the_command_reads_events_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "time,entity\n" + "".join(f"{60 * number},u\n" for number in range(4))
    type_in(monkeypatch, io.StringIO(text))
    ran = run("simulate calls=1/d --csv - --resource api --chart --format csv")
    assert (ran.code, "1970-01-01 00:01:00+00:00,1,1" in ran.out) == (0, True), ran.out + ran.err
    assert "3 of 4 events would be rejected (75.0%), for 1 of 1 entities" in ran.err
