"""Refusals: the right status and headers, as a page for people and as problem details for programs."""

from __future__ import annotations

import json
import re
from contextvars import Context
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.template.loader import get_template
from django.test import RequestFactory
from django.utils import translation
from pytest_django import Settings

from limits_app import limits, services
from limits_app.engine.errors import LimitExceeded, LimitTimeout, NeverAdmissible, StoreUnavailable
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, ResourceLimit
from limits_app.integrations.refusals import refusal
from limits_app.integrations.request import limits_of
from limits_app.models import Denial
from limits_app.services.limit_words import limit_name
from limits_app.services.rejections import rejections
from limits_app.testing import FakeClock
from limits_app.usage.denial_counter import Denials
from tests.integrations.site import Ask, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)

QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


def rejection(resource: Any = "api", **options: Any) -> LimitExceeded:
    """What acquiring something raises."""
    with pytest.raises(LimitExceeded) as caught:
        services.acquire(resource, **options)
    return caught.value


def refused(*limits: LimitDefinition, requested: Any = None) -> LimitExceeded:
    """What acquiring more than there is raises."""
    services.set_resource_limits("api", limits)
    services.try_acquire("api", entity="tenant:acme", requested=requested)
    return rejection(entity="tenant:acme", requested=requested)


def answer(error: LimitExceeded | StoreUnavailable, **headers: str) -> HttpResponse:
    """What a visitor gets."""
    return refusal(RequestFactory().get("/", headers={"X-Request-ID": "r-1", **headers}), error)


@pytest.mark.parametrize(
    ("limits", "requested", "wait", "retry_after", "names"),
    [
        pytest.param([CallLimit(1, 60)], None, 0, "60", ["call_count"], id="calls"),
        pytest.param([CallLimit(1, 60)], None, 0.001, "60", ["call_count"], id="a_moment_later_is_rounded_up"),
        pytest.param([CallLimit(1, 60)], None, 59.4, "1", ["call_count"], id="at_least_a_second"),
        pytest.param([CallLimit(1, 0.001)], None, 0, "1", ["call_count"], id="however_short_the_window"),
        pytest.param([CallLimit(1, 86_400 * 366)], None, 0, "31622400", ["call_count"], id="or_long"),
        pytest.param([RateLimit("tpm", 10, 60)], {"tpm": 6}, 0, "12", ["tpm"], id="a_rate"),
        pytest.param([ResourceLimit("slots", 1)], {"slots": 1}, 0, "1", ["slots"], id="a_permit_comes_back_any_time"),
        pytest.param(
            [CallLimit(1, 60), RateLimit("tpm", 10, 600)], {"tpm": 6}, 0, "120", ["call_count", "tpm"], id="the_longest"
        ),
        pytest.param(
            [CallLimit(1, 60), ResourceLimit("slots", 1)],
            {"slots": 1},
            0,
            "60",
            ["call_count", "slots"],
            id="the_known",
        ),
    ],
)
def test_a_limit_sets_retry_after(
    limits: list[LimitDefinition], requested: Any, wait: float, retry_after: str, names: list[str], clock: FakeClock
) -> None:
    services.set_resource_limits("api", limits)
    held = services.acquire("api", requested=requested)
    clock.advance(wait)
    response = answer(rejection(requested=requested))
    held.release()
    assert (response.status_code, response["Retry-After"], response["Cache-Control"]) == (429, retry_after, "no-store")
    assert response["Content-Type"] == "application/problem+json"
    problem = json.loads(response.content)
    long_waits = {"120": "about 2 minutes", "31622400": "about 366 days", "1": "1 second"}
    wait_text = long_waits.get(retry_after, f"{retry_after} seconds")
    assert problem == {
        "type": QUOTA,
        "title": "Too many requests",
        "status": 429,
        "detail": f"The limit of {', '.join(map(limit_name, names))} has been reached. Try again in {wait_text}.",
        "violated-policies": names,
        "request-id": "r-1",
    }


def test_a_blocked_entity_is_forbidden_and_gets_no_time() -> None:
    services.set_entity_limits("ann", [], effect="blocked")
    response = answer(rejection(entity="ann"))
    assert (response.status_code, response.has_header("Retry-After")) == (403, False)
    assert json.loads(response.content) == {
        "type": "urn:problem-type:limits-app:blocked",
        "title": "Access blocked",
        "status": 403,
        "detail": "Access to this resource has been blocked.",
        "violated-policies": ["blocked"],
        "request-id": "r-1",
    }


def test_a_resource_whose_upstream_cools_down_is_busy() -> None:
    services.report_upstream("api", retry_after=30)
    response = answer(rejection(entity="ann"))
    assert response.status_code == 429
    assert 25 <= int(response["Retry-After"]) <= 31
    assert json.loads(response.content)["detail"].startswith("The service behind this resource is busy. Try again in")


def test_request_that_is_never_admitted_is_a_client_error() -> None:
    services.set_resource_limits("api", [RateLimit("tpm", 10, 60)])
    error = rejection(requested={"tpm": 11})
    assert isinstance(error, NeverAdmissible)
    response = answer(error)
    assert (response.status_code, response.has_header("Retry-After")) == (422, False)
    assert json.loads(response.content) == {
        "type": "urn:problem-type:limits-app:too-much-at-once",
        "title": "Too much at once",
        "status": 422,
        "detail": "The request asks for more of tpm than is ever allowed.",
        "violated-policies": ["tpm"],
        "request-id": "r-1",
    }


def test_waiting_in_vain_is_refused_alike() -> None:
    error = refused(CallLimit(1, 3600))
    with pytest.raises(LimitTimeout) as caught:
        services.limit_set("api", "tenant:acme").acquire(timeout=0)
    assert answer(caught.value).content == answer(error).content


def test_a_store_that_is_down_is_nobodys_fault() -> None:
    response = answer(StoreUnavailable("the state file is gone: /var/lib/limits"))
    assert (response.status_code, response["Retry-After"], response["Cache-Control"]) == (503, "5", "no-store")
    assert json.loads(response.content) == {
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "Limits cannot be checked at the moment. Try again in a few seconds.",
    }


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        pytest.param(CHROME, "text/html", id="a_browser"),
        pytest.param("text/html", "text/html", id="html_only"),
        pytest.param("text/*", "text/html", id="any_text"),
        pytest.param("text/html, application/json;q=0.9", "text/html", id="rather_html"),
        pytest.param(None, "application/problem+json", id="nothing_said"),
        pytest.param("*/*", "application/problem+json", id="anything"),
        pytest.param("application/json", "application/problem+json", id="json"),
        pytest.param("application/problem+json", "application/problem+json", id="a_problem"),
        pytest.param("application/json, text/html;q=0.9", "application/problem+json", id="rather_json"),
        pytest.param("text/html;q=0, */*", "application/problem+json", id="anything_but_html"),
        pytest.param("image/png", "application/problem+json", id="something_else"),
        pytest.param("", "application/problem+json", id="empty"),
        pytest.param(",;,=;q=", "application/problem+json", id="rubbish"),
        pytest.param("text/html;q=nan", "text/html", id="a_weight_that_is_no_number"),
        pytest.param("text/html;a*=nonsense''x", "application/problem+json", id="an_unknown_encoding"),
        pytest.param("text/html;" + "x" * 20_000, "application/problem+json", id="twenty_kilobytes"),
        pytest.param("a/b," * 5_000, "application/problem+json", id="five_thousand_types"),
    ],
)
def test_people_get_a_page_and_programs_a_problem(accept: str | None, content_type: str) -> None:
    error = refused(CallLimit(1, 60))
    response = answer(error) if accept is None else answer(error, Accept=accept)
    assert response["Content-Type"].split(";")[0] == content_type
    assert (response.status_code, response["Retry-After"]) == (429, "60")


def test_the_page_is_plain_and_names_the_reason() -> None:
    page = answer(refused(CallLimit(1, 60)), Accept=CHROME).content.decode()
    assert "<title>Too many requests</title>" in page
    assert "<h1>Too many requests</h1>" in page
    assert "<p>Try again in 60 seconds.</p>" in page
    assert "call_count" not in page
    assert '<html lang="en-us" dir="ltr">' in page
    assert not re.search(r"<script|<style|style=|\son\w+=|src=|http", page)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1 second"),
        (119, "119 seconds"),
        (709, "about 12 minutes"),
        (7_200, "about 2 hours"),
        (259_200, "about 3 days"),
    ],
)
def test_people_and_programs_read_when_to_try_again_in_round_units(seconds: int, text: str) -> None:
    error = refused(CallLimit(1, seconds))
    assert f"<p>Try again in {text}.</p>" in answer(error, Accept=CHROME).content.decode()
    detail = json.loads(answer(error).content)["detail"]
    assert detail == f"The limit of requests has been reached. Try again in {text}."


def test_the_page_has_its_language() -> None:
    error = refused(CallLimit(1, 60))
    with translation.override("ar"):
        assert '<html lang="ar" dir="rtl">' in answer(error, Accept="text/html").content.decode()


def test_a_rejection_does_not_name_the_owner_of_the_limit() -> None:
    error = refused(CallLimit(1, 60))
    assert b"acme" not in answer(error).content + answer(error, Accept=CHROME).content


def templates(settings: Settings, folder: Path, text: str) -> None:
    """Have the site bring a page of its own."""
    (folder / "limits_app").mkdir()
    (folder / "limits_app" / "429.html").write_text(text)
    settings.TEMPLATES = [settings.TEMPLATES[0] | {"DIRS": [folder]}]


def test_a_site_may_bring_its_own_page(settings: Settings, tmp_path: Path) -> None:
    text = "{{ status }} {{ title }} {{ retry_after }} {{ violated_policies.0 }} {{ request.path }}"
    templates(settings, tmp_path, text)
    page = answer(refused(CallLimit(1, 60)), Accept=CHROME)
    assert page.content == b"429 Too many requests 60 call_count /"
    assert get_template("limits_app/429.html").origin.name.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("base", "part"), [("shop.html", "Shop<h1>Too many requests</h1>"), ("gone.html", "<h1>Too many requests</h1>")]
)
def test_the_page_wears_the_template_of_the_site_or_the_default_one(
    base: str, part: str, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "shop.html").write_text("Shop{% block content %}{% endblock %}")
    settings.TEMPLATES = [settings.TEMPLATES[0] | {"DIRS": [tmp_path]}]
    settings.LIMITS = {**settings.LIMITS, "BASE_TEMPLATE": base}
    page = answer(refused(CallLimit(1, 60)), Accept=CHROME)
    assert part in page.content.decode()
    assert page.status_code == 429


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        ("http://testserver/shop/?page=2", "http://testserver/shop/?page=2"),
        ("", ""),
        ("http://testserver/", ""),
        ("https://evil.example/", ""),
        ("javascript:alert(1)", ""),
    ],
)
def test_the_page_has_a_way_back_on_this_site(referer: str, back: str) -> None:
    page = answer(refused(CallLimit(1, 60)), Accept=CHROME, Referer=referer).content.decode()
    assert re.findall(r'href="([^"]*)">Back<', page) == ([back] if back else [])


@pytest.mark.parametrize("host", ["evil.example", "testserver.evil.example:80", "a/b", "[::1", "x\x00y"])
def test_a_client_with_a_foreign_host_gets_the_page(ask: Ask, serve: Any, host: str) -> None:
    serve({"shop/": fine})
    endpoint(limit("api"), "/shop/")
    hostile = {"Accept": CHROME, "Host": host, "Referer": f"http://{host}/shop/"}
    assert ask("/shop/", **hostile).status_code == 200
    page = ask("/shop/", **hostile)
    assert (page.status_code, page["Cache-Control"]) == (429, "no-store")
    assert re.findall(r'href="([^"]*)">Back<', page.content.decode()) == ["/"]


@pytest.mark.parametrize("text", ["{% broken %}", "{% include 'not/there.html' %}", "{{ request.META|add:1.x.y }}"])
def test_a_page_that_cannot_be_shown_is_still_a_refusal(
    ask: Ask, serve: Any, settings: Settings, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    templates(settings, tmp_path, text)
    serve({"": fine})
    endpoint(limit("api"))
    assert ask(Accept=CHROME).status_code == 200
    response = ask(Accept=CHROME)
    assert (response.status_code, response["Content-Type"]) == (429, "application/problem+json")
    assert "the template of a refusal failed" in caplog.text


def test_a_page_may_ask_the_database(ask: Ask, serve: Any, settings: Settings, tmp_path: Path) -> None:
    templates(settings, tmp_path, "{{ user.is_authenticated }}")
    serve({"": fine})
    endpoint(limit("api"))
    ask()
    assert ask(Accept=CHROME, Cookie="sessionid=somebody").content == b"False"


def test_limits_of_several_resources_are_named_as_in_the_headers() -> None:
    services.set_resource_limits("x1", [CallLimit(1, 60)])
    services.set_resource_limits("x2", [CallLimit(1, 60), RateLimit("tpm", 10, 60)])
    asked = {"x1": None, "x2": {"tpm": 1}}
    services.acquire(asked)
    assert json.loads(answer(rejection(asked)).content)["violated-policies"] == ["x1:call_count", "x2:call_count"]
    services.set_system_limits([CallLimit(1, 60)], counted="total")
    services.acquire("x3", entity="ann")
    assert json.loads(answer(rejection("x1", entity="ann")).content)["violated-policies"] == ["call_count"]


@pytest.mark.parametrize(
    ("given", "shown"), [("r-1", "r-1"), ("x" * 80, "x" * 64), ("", r"[0-9a-f]{12}"), ("<script>", r"[0-9a-f]{12}")]
)
def test_the_id_of_a_request_leads_to_its_rejection(given: str, shown: str, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"REQUEST_ID_HEADER": "X-Trace"}
    request = RequestFactory().get("/", headers={"X-Trace": given})
    limits_of(request)  # as the middleware does
    error = refused(CallLimit(1, 60))
    request_id = json.loads(refusal(request, error).content)["request-id"]
    assert re.fullmatch(shown, request_id)
    page = answer(error, accept="text/html", **{"X-Trace": request_id}).content.decode()
    assert f"<code>{request_id}</code>" in page
    limits.roll_up()
    (found,) = rejections(request_id=request_id)
    assert (found.count.resource, found.count.key, found.count.count) == ("api", "call_count", 1)
    assert rejections(request_id="another") == []


def test_the_ids_of_the_last_rejections_of_a_minute_are_kept() -> None:
    outcome = refused(CallLimit(1, 60)).outcome
    counter = Denials(now=lambda: 1_800_000_000.0)
    counter.note(outcome)  # outside of a request
    for number in range(120):
        request = RequestFactory().get("/", headers={"X-Request-ID": f"request-{number:03}"})
        limits_of(request)
        counter.note(outcome)
        if number % 3 == 0:
            counter.note(outcome)  # the id of a request that is rejected twice is kept once
        if number % 40 == 39:
            counter.flush()
            limits.roll_up()
    Context().run(counter.note, outcome)  # outside of a request again, when the ids fill the column
    counter.flush()
    limits.roll_up()
    row = Denial.objects.get(minute__gte=datetime(2027, 1, 1, tzinfo=UTC))
    ids = row.request_ids.split()
    assert row.count == 162
    assert ids[:-1] == [f"request-{number:03}" for number in range(119, 119 - len(ids) + 1, -1)]
    assert len(row.request_ids) == 1_000
