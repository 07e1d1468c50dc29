"""Rules for URLs that count certain responses, block for a time, and take their cost from the response."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from threading import Barrier, Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.views import APIView

from limits_app import services
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.integrations.responses import cost_function
from limits_app.models import Endpoint, Enforcement, Policy
from limits_app.services.blocked_requests import lift_blocks
from limits_app.services.candidates import set_candidate
from limits_app.services.url_matching import endpoints
from limits_app.testing import FakeClock
from tests.integrations.site import Ask, afine, endpoint, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

ALGORITHMS = [*RateLimitAlgorithm]
MINUTES = 60


def answer(request: HttpRequest) -> HttpResponse:
    """Answer with the status that the client wants, as a log-in does."""
    return HttpResponse(status=int(request.headers.get("X-Status", "200")))


async def aanswer(request: HttpRequest) -> HttpResponse:
    """`answer` for asyncio."""
    return answer(request)


def streamed(request: HttpRequest) -> StreamingHttpResponse:
    """Send the status, and then parts of a body."""
    return StreamingHttpResponse(iter([b"a", b"b"]), status=int(request.headers["X-Status"]))


def raises(request: HttpRequest) -> HttpResponse:
    """Fail as the client wants."""
    raise {"404": Http404(), "500": ValueError("broken")}[request.headers["X-Status"]]


class Authenticated(APIView):
    """A view of the REST framework that rejects each second client."""

    def get(self, request: Any) -> HttpResponse:
        if request.headers["X-Status"] == "403":
            raise AuthenticationFailed
        return HttpResponse()


@pytest.fixture
def log_in(serve: Any) -> Callable[..., Endpoint]:
    """Limit log-ins to 5 failures in 10 minutes, and then block for 10 minutes."""

    def make(view: Any = answer, **fields: Any) -> Endpoint:
        serve({"login/": view})
        options = {"limits": "5/10min:sliding_window", "responses": "errors", "block_for": "10m", "counted_by": "ip"}
        return endpoint(None, "/login/", **(options | fields))

    return make


@pytest.mark.parametrize("view", [answer, aanswer], ids=["sync", "async"])
def test_five_failures_block_for_ten_minutes(log_in: Any, ask: Ask, clock: FakeClock, view: Any) -> None:
    log_in(view)
    for _ in range(20):
        assert ask("/login/").status_code == 200
    for _ in range(5):
        assert ask("/login/", X_Status="401").status_code == 401
        clock.advance(1)
    rejected = ask("/login/")
    assert rejected.status_code == 429
    assert rejected.headers["Retry-After"] == "599", "the block began with the fifth failure"
    clock.advance(10 * MINUTES - 2)
    for _ in range(20):
        assert ask("/login/").status_code == 429
    clock.advance(1)
    assert ask("/login/").status_code == 200, "further requests do not extend the block"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_certain_responses_count_with_every_algorithm(log_in: Any, ask: Ask, algorithm: str) -> None:
    log_in(limits=f"5/10min:{algorithm}", responses="401,403", block_for="")
    for status in [200, 401, 500, 403, 404] * 2 + [302] * 7 + [401]:
        assert ask("/login/", X_Status=str(status)).status_code == status
    assert ask("/login/").status_code == 429


@pytest.mark.parametrize(
    ("responses", "status", "counts"),
    [
        ("401,403", 401, True),
        ("401,403", 404, False),
        ("4xx", 404, True),
        ("4xx", 500, False),
        ("4xx,503", 503, True),
        ("errors", 500, True),
        ("errors", 302, False),
        ("2xx", 200, True),
        ("", 200, True),
    ],
)
def test_the_statuses_that_count(log_in: Any, ask: Ask, responses: str, status: int, counts: bool) -> None:
    log_in(limits="1/h", responses=responses, block_for="")
    ask("/login/", X_Status=str(status))
    assert ask("/login/").status_code == (429 if counts else 200)


@pytest.mark.parametrize("store", ["memory", pytest.param("redis", marks=pytest.mark.server)])
def test_parallel_good_requests_begin_no_block(log_in: Any, store: str, request: pytest.FixtureRequest) -> None:
    if store == "redis":
        request.getfixturevalue("on_redis")
    running, released, arrived = Barrier(6), Event(), Counter[str]()

    def view(request: HttpRequest) -> HttpResponse:
        if request.headers.get("X-Waits"):
            running.wait(10)
            released.wait(10)
        return HttpResponse()

    log_in(view)
    assert Client().get("/login/").status_code == 200

    def send(_number: int) -> int:
        return Client().get("/login/", headers={"X-Waits": "yes"}).status_code

    with ThreadPoolExecutor(12) as threads:
        admitted = [threads.submit(send, number) for number in range(5)]
        running.wait(10)
        beyond = [*threads.map(send, range(7))]
        released.set()
        arrived.update(str(future.result()) for future in admitted)
    assert beyond == [429] * 7, "as many as the limit at the same time"
    assert arrived == {"200": 5}
    assert [Client().get("/login/").status_code for _ in range(12)] == [200] * 12, "none is blocked"


def test_a_block_begins_when_a_limit_of_all_responses_is_exceeded(log_in: Any, ask: Ask, clock: FakeClock) -> None:
    log_in(limits="2/min", responses="", block_for="1h")
    assert [ask("/login/").status_code for _ in range(3)] == [200, 200, 429]
    clock.advance(59 * MINUTES)
    assert ask("/login/").headers["Retry-After"] == "60"
    clock.advance(1 * MINUTES)
    assert ask("/login/").status_code == 200


def test_a_check_and_a_rejection_by_another_rule_begin_no_block(log_in: Any, ask: Ask, clock: FakeClock) -> None:
    rule = log_in(limits="2/min:sliding_window", responses="", block_for="1h")
    rule.refresh_from_db()
    endpoint(limit("site", CallLimit(1, 10, RateLimitAlgorithm.FIXED_WINDOW)), "/login/", counted_by="everyone")
    assert [ask("/login/").status_code for _ in range(3)] == [200, 429, 429]
    clock.advance(10)
    assert ask("/login/").status_code == 200
    services.check(rule.resource_name, entity="ip:127.0.0.1")
    clock.advance(MINUTES)
    assert ask("/login/").status_code == 200


def test_good_requests_of_a_shared_resource_begin_no_block_of_failures(serve: Any, ask: Ask, clock: FakeClock) -> None:
    serve({"login/": answer})
    shared = limit("log-ins", CallLimit(5, 600, RateLimitAlgorithm.SLIDING_WINDOW))
    endpoint(shared, "/login/", name="failures", counted_by="ip", responses="errors", block_for="2h")
    endpoint(shared, "/login/", name="all", counted_by="ip")
    assert [ask("/login/").status_code for _ in range(8)] == [200] * 5 + [429] * 3
    assert ask("/login/").headers["Retry-After"] == "600", "the limit rejects, and no block"
    clock.advance(10 * MINUTES)
    assert [ask("/login/", X_Status="401").status_code for _ in range(6)] == [401] * 5 + [429]
    assert ask("/login/").headers["Retry-After"] == str(120 * MINUTES), "failures still begin the block"


def test_a_request_that_another_rule_rejects_is_charged_nothing(log_in: Any, ask: Ask) -> None:
    endpoint(limit("site", CallLimit(9, 60, RateLimitAlgorithm.SLIDING_WINDOW)), "/login/", counted_by="everyone")
    log_in(limits="1/h", responses="", block_for="1h")
    assert [ask("/login/").status_code for _ in range(5)] == [200, 429, 429, 429, 429]
    assert left("site", None) == {"call_count": 8}


def test_a_reset_ends_a_block(log_in: Any, ask: Ask) -> None:
    rule = log_in(limits="1/h", responses="", block_for="1h")
    rule.refresh_from_db()
    assert [ask("/login/").status_code for _ in range(2)] == [200, 429]
    services.reset(rule.resource_name, entity="ip:127.0.0.1")
    assert ask("/login/").status_code == 200


def test_unblocking_ends_a_block(log_in: Any, ask: Ask) -> None:
    log_in(limits="1/h", responses="errors", block_for="1h")
    assert [ask("/login/", X_Status="401").status_code for _ in range(2)] == [401, 429]
    resource = Endpoint.objects.get().resource_name
    assert "blocks it" in str(services.explain(resource, entity="ip:127.0.0.1"))
    lift_blocks("ip:127.0.0.1")
    assert "blocks it" not in str(services.explain(resource, entity="ip:127.0.0.1"))


def test_unblocking_a_client_ends_blocks_of_its_combinations(log_in: Any) -> None:
    log_in(limits="1/h:sliding_window", block_for="2h", combined_with="cookie:device")

    def send(device: str, status: str = "200", address: str = "192.0.2.1") -> str:
        headers = {"X-Status": status, "Cookie": f"device={device}"}
        response = Client().get("/login/", headers=headers, REMOTE_ADDR=address)
        return str(response.status_code) if response.status_code != 429 else response.headers["Retry-After"]

    for device, address in (("a", "192.0.2.1"), ("b", "192.0.2.1"), ("a", "192.0.2.11")):
        assert [send(device, "401", address), send(device, "200", address)] == ["401", "7200"]
    lift_blocks("ip:192.0.2.1")
    assert [send(device) for device in "ab"] == ["3600", "3600"], "only the limit itself is used up"
    assert send("a", address="192.0.2.11") == "7200", "another client stays blocked"


def test_unblocking_a_client_ends_no_block_of_another_whose_name_ends_like_it(log_in: Any, ask: Ask) -> None:
    log_in(limits="1/h:sliding_window", block_for="2h", combined_with="cookie:device", counted_by="entity")
    for person in ("smith", "ann smith"):
        assert ask("/login/", who=person, X_Status="401", Cookie="device=a").status_code == 401
        assert ask("/login/", who=person, Cookie="device=a").headers["Retry-After"] == "7200"
    lift_blocks("smith")
    assert ask("/login/", who="smith", Cookie="device=a").headers["Retry-After"] == "3600"
    assert ask("/login/", who="ann smith", Cookie="device=a").headers["Retry-After"] == "7200"


def test_a_block_is_explained(log_in: Any, ask: Ask, clock: FakeClock) -> None:
    log_in(limits="1/min:sliding_window", responses="", block_for="1h")
    resource = Endpoint.objects.get().resource_name
    assert services.explain(resource, entity="ip:127.0.0.1").outcome.allowed
    assert [ask("/login/").status_code for _ in range(2)] == [200, 429]
    clock.advance(10 * MINUTES)
    explanation = services.explain(resource, entity="ip:127.0.0.1")
    assert "A URL rule blocks it for 3000 s, since its limit was exceeded." in str(explanation)
    assert explanation.chain[0].limits[0].status is not None
    assert explanation.chain[0].limits[0].status.remaining == 1
    assert services.explain(resource, entity="ip:192.0.2.1").outcome.allowed


@pytest.mark.parametrize("status", ["404", "500"])
def test_exceptions_of_views_count_as_the_response_that_they_become(log_in: Any, ask: Ask, status: str) -> None:
    log_in(raises, limits="2/h", responses="errors", block_for="")
    assert [ask("/login/", X_Status=status).status_code for _ in range(3)] == [int(status), int(status), 429]


def test_responses_of_the_rest_framework_count(log_in: Any, ask: Ask) -> None:
    log_in(Authenticated.as_view(), limits="2/h", responses="401,403", block_for="")
    assert [ask("/login/", X_Status=status).status_code for status in ("200", "403", "200", "403", "200")] == [
        200, 403, 200, 403, 429,
    ]  # fmt: skip


def test_streamed_responses_count_by_their_status(log_in: Any) -> None:
    log_in(streamed, limits="2/h db=1:permits", responses="4xx", block_for="")
    client, statuses = Client(), []
    for status in ("200", "401", "200", "401", "200"):
        response = client.get("/login/", headers={"X-Status": status})
        if response.status_code != 429:
            assert left(Endpoint.objects.get().resource_name, "ip:127.0.0.1")["db"] == 0, "until the response was sent"
            assert b"".join(response) == b"ab"
        response.close()
        assert left(Endpoint.objects.get().resource_name, "ip:127.0.0.1")["db"] == 1
        statuses.append(response.status_code)
    assert statuses == [200, 401, 200, 401, 429]


def test_a_rule_in_shadow_mode_begins_no_block(log_in: Any, ask: Ask) -> None:
    rule = log_in(limits="1/h", responses="", block_for="1h")
    Policy.objects.filter(resource__name=Endpoint.objects.get(pk=rule.pk).resource_name).update(
        enforcement=Enforcement.SHADOW
    )
    assert [ask("/login/").status_code for _ in range(4)] == [200] * 4
    Policy.objects.update(enforcement=Enforcement.ENFORCE)
    assert ask("/login/").status_code == 200, "nothing was blocked before"


def test_uncounted_responses_are_undone_in_shadow_mode_too(log_in: Any, ask: Ask) -> None:
    rule = log_in(limits="2/h:sliding_window", block_for="")
    Policy.objects.filter(resource__name=Endpoint.objects.get(pk=rule.pk).resource_name).update(
        enforcement=Enforcement.SHADOW
    )
    resource = Endpoint.objects.get(pk=rule.pk).resource_name
    before = sum(services.shadow_refusals().get(resource, {}).values())
    for status in ["200"] * 5 + ["401", "401"]:
        ask("/login/", X_Status=status)
    assert sum(services.shadow_refusals().get(resource, {}).values()) == before
    ask("/login/")
    assert sum(services.shadow_refusals().get(resource, {}).values()) == before + 1


def test_a_candidate_counts_certain_responses_too(log_in: Any) -> None:
    log_in(limits="9/h:sliding_window", block_for="1h")
    policy = Policy.objects.get(resource__name=Endpoint.objects.get().resource_name)
    set_candidate(policy, "calls=2/h:sliding_window", reason="fewer", actor="root")
    client = Client()

    def would_reject(status: str) -> bool:
        response = client.get("/login/", headers={"X-Status": status})
        assert response.status_code == int(status)
        return bool(response.wsgi_request.limits.outcomes[0].shadowed)

    statuses = ["200"] * 4 + ["401"] + ["200"] * 4 + ["401", "200", "401"]
    assert [would_reject(status) for status in statuses] == [False] * 10 + [True, True]


def test_code_that_acquires_begins_no_block(log_in: Any, ask: Ask, clock: FakeClock) -> None:
    log_in(limits="1/min:sliding_window", responses="", block_for="1h")
    resource = Endpoint.objects.get().resource_name
    assert ask("/login/").status_code == 200
    assert not services.try_acquire(resource, entity="ip:127.0.0.1")
    clock.advance(MINUTES)
    assert ask("/login/").status_code == 200


def test_a_request_below_a_kept_share_begins_no_block(log_in: Any, ask: Ask) -> None:
    rule = log_in(limits="10/h:sliding_window:keep=low:70%", responses="", block_for="2h", request_priority="low")
    assert [ask("/login/").status_code for _ in range(5)] == [200, 200, 200, 429, 429]
    Endpoint.objects.filter(pk=rule.pk).update(request_priority="high")
    assert [ask("/login/").status_code for _ in range(8)] == [200] * 7 + [429]
    assert ask("/login/").headers["Retry-After"] == "7200", "the limit itself was exceeded"


def test_an_unavailable_store_blocks_no_client(log_in: Any, ask: Ask, take_down: Any) -> None:
    log_in(limits="5/h", block_for="1h")
    assert ask("/login/").status_code == 200
    take_down()
    assert {ask("/login/", X_Status="401").status_code for _ in range(9)} <= {401, 503, 429}


@pytest.mark.parametrize(
    ("header", "left_after"),
    [
        ("30", 70),
        ("tokens=40", 60),
        ("tokens=40, unknown=3", 60),
        ("", 99),
        ("x", 99),
        ("1e3", 99),
        ("-5", 99),
        ("250", 0),
    ],
)
def test_a_header_of_the_response_has_the_cost(serve: Any, ask: Ask, header: str, left_after: int) -> None:
    serve({"x/": lambda request: HttpResponse(headers={"X-Cost": header} if header else {})})
    endpoint(limit("api", RateLimit("tokens", 100, 3600)), "/x/", cost="header:X-Cost", counted_by="ip")
    assert ask("/x/").status_code == 200
    assert left("api", "ip:127.0.0.1")["tokens"] == pytest.approx(left_after, abs=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_requests_have_a_cost_too(serve: Any, ask: Ask, algorithm: str) -> None:
    serve({"x/": lambda request: HttpResponse(headers={"X-Cost": "4"})})
    endpoint(None, "/x/", limits=f"6/h:{algorithm}", cost="header:X-Cost", counted_by="ip")
    assert [ask("/x/").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("kind", [RateLimitAlgorithm.SLIDING_WINDOW, RateLimitAlgorithm.TOKEN_BUCKET])
def test_a_block_begins_when_costs_of_counted_responses_use_up_a_limit(serve: Any, ask: Ask, kind: str) -> None:
    serve({"x/": lambda request: HttpResponse(status=int(request.headers["X-Status"]), headers={"X-Cost": "60"})})
    cost = {"cost": "header:X-Cost", "responses": "errors", "block_for": "2h"}
    endpoint(None, "/x/", limits=f"100/h:{kind}", counted_by="ip", **cost)
    assert [ask("/x/", X_Status=status).status_code for status in ("200", "401", "200", "401")] == [200, 401, 200, 401]
    rejected = ask("/x/", X_Status="200")
    assert rejected.status_code == 429
    assert "further requests are rejected for a while" in rejected.json()["detail"]


def test_a_cost_is_that_of_responses_which_its_rule_counts(serve: Any, ask: Ask) -> None:
    serve({"x/": lambda request: HttpResponse(status=int(request.headers["X-Status"]), headers={"X-Cost": "40"})})
    api = limit("api", RateLimit("tokens", 100, 3600))
    endpoint(api, "/x/", name="failures", cost="header:X-Cost", responses="401", counted_by="ip")
    endpoint(api, "/x/", name="all", counted_by="ip")
    ask("/x/", X_Status="200")
    assert left("api", "ip:127.0.0.1")["tokens"] == pytest.approx(99, abs=1)
    ask("/x/", X_Status="401")
    assert left("api", "ip:127.0.0.1")["tokens"] == pytest.approx(59, abs=1)


def test_invalid_costs_are_logged_once(serve: Any, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    name = f"X-{token_hex(4)}"
    serve({"x/": lambda request: HttpResponse(headers={name: request.headers["X-Sent"]})})
    endpoint(limit("api", RateLimit("tokens", 100, 3600)), "/x/", cost=f"header:{name}", counted_by="ip")
    sent = ["nan", "-1", "inf", "1e400", "9" * 400, "0x10", "1_0", "=", "a=b", "1,2", "9007199254740992"]
    assert {ask("/x/", X_Sent=value).status_code for value in sent} == {200}
    assert left("api", "ip:127.0.0.1")["tokens"] == pytest.approx(100 - len(sent), abs=1)
    problems = [record for record in caplog.records if name in record.getMessage()]
    assert len(problems) == 1
    assert problems[0].exc_info is None


def test_invalid_amounts_of_a_rule_are_undone_for_uncounted_responses(
    log_in: Any, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    rule = log_in()
    Endpoint.objects.filter(pk=rule.pk).update(amounts={"call_count": 0.5})  # past the validation
    endpoints.clear()
    assert [ask("/login/").status_code for _ in range(12)] == [200] * 12
    assert "takes 1 of each limit until its amounts are corrected" in caplog.text
    assert [ask("/login/", X_Status="401").status_code for _ in range(5)] == [401] * 5
    assert ask("/login/").status_code == 429


@cost_function
def cost_of_length(request: HttpRequest, response: Any) -> int:
    """What a page costs."""
    return len(response.content)


def test_a_function_has_the_cost(serve: Any, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    serve({"x/": lambda request: HttpResponse("x" * 30), "y/": lambda request: HttpResponse("y")})
    path = f"{cost_of_length.__module__}.{cost_of_length.__qualname__}"
    endpoint(limit("api", RateLimit("tokens", 100, 3600)), "/x/", cost=path, counted_by="ip")
    unknown = f"nowhere.costs.of_{token_hex(4)}"
    endpoint(limit("other", RateLimit("tokens", 100, 3600)), "/y/", cost=unknown, counted_by="ip")
    assert [ask("/x/").status_code, ask("/y/").status_code] == [200, 200]
    assert left("api", "ip:127.0.0.1")["tokens"] == pytest.approx(70, abs=1)
    assert left("other", "ip:127.0.0.1")["tokens"] == pytest.approx(99, abs=1)
    assert f"{unknown} is not a function with @cost_function" in caplog.text
    assert "recorded as debt" not in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "content_type", "sent"),
    [
        ("", 403, None, None),
        ("Come back later.", None, "text/plain; charset=utf-8", b"Come back later."),
        ('{"error": "slow"}', 420, "application/json", b'{"error": "slow"}'),
        ("<b>no</b>", 503, "text/plain; charset=utf-8", b"<b>no</b>"),
        ("[" * 4000, 403, "text/plain; charset=utf-8", b"[" * 4000),
    ],
)
def test_a_rule_answers_rejections_itself(
    log_in: Any, ask: Ask, body: str, status: int | None, content_type: str | None, sent: bytes | None
) -> None:
    status = 429 if status == 420 else status
    log_in(limits="1/h", responses="", block_for="", refusal_status=status, refusal_body=body)
    assert ask("/login/").status_code == 200
    rejected = ask("/login/")
    assert rejected.status_code == (status or 429)
    assert int(rejected.headers["Retry-After"]) > 0
    assert rejected.headers["Cache-Control"] == "no-store"
    if sent is None:
        assert json.loads(rejected.content)["status"] == status
    else:
        assert (rejected.headers["Content-Type"], rejected.content) == (content_type, sent)


def test_another_rule_keeps_the_usual_answer(log_in: Any, ask: Ask) -> None:
    log_in(limits="5/h", responses="", block_for="", refusal_status=403, refusal_body="own")
    endpoint(limit("site"), "/login/", counted_by="everyone")
    assert ask("/login/").status_code == 200
    rejected = ask("/login/")
    assert rejected.status_code == 429
    assert rejected.content != b"own"


def test_a_pool_of_async_requests_begins_no_block(log_in: Any) -> None:
    log_in(afine)
    client = AsyncClient()

    async def send() -> list[int]:
        return [(await client.get("/login/")).status_code for _ in range(12)]

    assert async_to_sync(send)() == [200] * 12
