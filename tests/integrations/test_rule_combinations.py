"""Rules for URLs that count by a combination of parts of a request."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from pytest_django import Settings

from limits_app import services
from limits_app.models import Endpoint, Plan
from limits_app.policies.combined import TIMES_OF_A_CLIENT
from limits_app.services.url_matching import endpoints
from tests.integrations.site import endpoint, fine

pytestmark = pytest.mark.django_db(transaction=True)


def posted(request: HttpRequest, **captured: object) -> HttpResponse:
    """Answer with what the form has."""
    return HttpResponse(request.POST.get("username", ""))


@pytest.fixture
def rule(serve: Any) -> Any:
    """Limit requests to 1 an hour for each combination."""

    def make(parts: str, **fields: Any) -> Endpoint:
        serve({"x/": posted, "item/<int:pk>/": fine})
        path = {} if "view_name" in fields or "path" in fields else {"path": "/*"}
        return endpoint(None, **(path | {"limits": "1/h", "counted_by": "ip", "combined_with": parts} | fields))

    return make


@pytest.mark.parametrize(
    ("parts", "first", "same", "another"),
    [
        ("header:X-D", {"headers": {"X-D": "a"}}, {"headers": {"X-D": " A "}}, {"headers": {"X-D": "b"}}),
        ("cookie:device", {"headers": {"Cookie": "device=a"}}, {"headers": {"Cookie": "x=1; device=a"}}, {}),
        ("query:q", {"query_params": {"q": "a"}}, {"query_params": {"q": ["b", "a"]}}, {"query_params": {"q": "b"}}),
        ("form:username", {"data": {"username": "ann"}}, {"data": {"username": "ANN "}}, {"data": {"username": "bob"}}),
        ("form:username", {"data": {}}, {"data": {"username": ""}}, {"data": {"username": "bob"}}),
        ("form:username", {}, {"data": "{}", "content_type": "application/json"}, {"data": {"username": "bob"}}),
        (
            "form:username\nheader:X-Device",
            {"data": {"username": "ann"}, "headers": {"X-Device": "a"}},
            {"data": {"username": "ann"}, "headers": {"X-Device": "a"}},
            {"data": {"username": "a"}, "headers": {"X-Device": "ann"}},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("counted_by", ["ip", "everyone"])
def test_each_value_has_its_counter(
    rule: Any, counted_by: str, parts: str, first: Any, same: Any, another: Any
) -> None:
    rule(parts, counted_by=counted_by)
    statuses = [Client().post("/x/", **request).status_code for request in (first, same, another)]
    assert statuses == [200, 429, 200]


def test_a_user_and_a_parameter_of_the_url(rule: Any) -> None:
    rule("path:pk", counted_by="user", path="/item/<int:pk>/")
    ann, bob = Client(), Client()
    ann.force_login(User.objects.create_user("ann"))
    bob.force_login(User.objects.create_user("bob"))
    requests = [(ann, 1), (ann, 1), (ann, 2), (bob, 1), (bob, 2), (bob, 2)]
    assert [client.get(f"/item/{pk}/").status_code for client, pk in requests] == [200, 429, 200, 200, 200, 429]


def test_a_user_and_an_address(rule: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["127.0.0.1"]}
    rule("ip", counted_by="user")
    ann = Client()
    ann.force_login(User.objects.create_user("ann"))
    addresses = ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
    statuses = [ann.get("/x/", headers={"X-Forwarded-For": address}).status_code for address in addresses]
    assert statuses == [200, 429, 200]


def test_views_read_the_form_themselves(rule: Any) -> None:
    rule("form:username")
    assert Client().post("/x/", {"username": "ann"}).content == b"ann"
    encoded = Client().post("/x/", "username=bob", content_type="application/x-www-form-urlencoded")
    assert encoded.content == b"bob"


@pytest.mark.parametrize("data", ["--x\r\n", b"\xff\xfe"])
def test_a_form_that_cannot_be_read_has_no_value(rule: Any, data: Any) -> None:
    rule("form:username")
    statuses = [
        Client(raise_request_exception=False)
        .post("/x/", data, content_type="multipart/form-data; boundary=x")
        .status_code
        for _ in range(2)
    ]
    assert statuses[1] == 429


@pytest.mark.parametrize("charset", ["undefined", "base64", "idna", "rot13", "unknown"])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "application/x-www-form-urlencoded"])
def test_a_form_in_no_text_encoding_has_no_value(rule: Any, kind: str, charset: str) -> None:
    rule("form:username", path="/item/<int:pk>/")
    part = b'--b\r\nContent-Disposition: form-data; name="username"\r\n\r\n\x80\x80\r\n--b--\r\n'
    data = part if kind.startswith("multipart") else b"username=%80"
    statuses = [
        Client(raise_request_exception=False)
        .generic("POST", "/item/1/", data, content_type=f"{kind}; charset={charset}")
        .status_code
        for _ in range(2)
    ]
    assert statuses == [200, 429]


def test_a_query_with_too_many_fields_has_no_value(rule: Any) -> None:
    rule("query:q")
    query = "&".join(["q=a"] + [f"f{number}=1" for number in range(2000)])
    assert [Client().post(f"/x/?{query}&n={number}").status_code for number in range(2)] == [200, 429]


def test_long_values_take_no_long_time(rule: Any) -> None:
    """To normalize many combining characters takes a time that grows with the square of their number."""
    rule("form:username")
    name = "\u0301\u0327" * 100_000
    before = process_time()
    assert [Client().post("/x/", {"username": name}).status_code for _ in range(2)] == [200, 429]
    assert process_time() - before < 5


def ask(value: object, address: str = "192.0.2.1") -> int:
    """Send a value of the rule from an address."""
    return Client().get("/x/", headers={"Cookie": f"device={value}"}, REMOTE_ADDR=address).status_code


@pytest.fixture
def costly(serve: Any) -> Any:
    """Limit each device to 2 tokens an hour; a request uses as many as its client says."""

    def make(**fields: Any) -> Endpoint:
        serve({"x/": lambda request: HttpResponse(headers={"X-Cost": request.headers["X-Sent"]})})
        conditions = {"combined_with": "cookie:device", "cost": "header:X-Cost"}
        return endpoint(None, "/x/", limits="tokens=2/h", counted_by="ip", **(conditions | fields))

    return make


def use(tokens: int, value: object) -> int:
    """Send a value of the rule, and use so many tokens."""
    sent = {"Cookie": f"device={value}", "X-Sent": str(tokens)}
    return Client().get("/x/", headers=sent, REMOTE_ADDR="192.0.2.1").status_code


@pytest.mark.slow
def test_each_of_a_thousand_values_has_its_counter_and_no_more(rule: Any) -> None:
    rule("cookie:device", limits="1/h")
    assert {ask(number) for number in range(TIMES_OF_A_CLIENT)} == {200}, "no two values share a counter"
    assert {ask(number) for number in (0, TIMES_OF_A_CLIENT)} == {429}, "all values together are used up"
    assert [ask(0, "192.0.2.2"), ask(0, "192.0.2.2")] == [200, 429]


def test_costs_of_responses_are_charged_to_all_values_of_a_client(costly: Any) -> None:
    costly()
    assert [use(TIMES_OF_A_CLIENT, value) for value in "abcd"] == [200, 200, 429, 429]


def test_values_are_bounded_in_one_step_with_other_rules(costly: Any) -> None:
    costly()
    endpoint(None, "/x/", limits="2000/h", counted_by="ip")
    endpoint(None, "/x/", limits="9/h", counted_by="everyone", combined_with="header:X-Other\nip")
    assert [use(TIMES_OF_A_CLIENT, value) for value in "abcd"] == [200, 200, 429, 429]


def test_a_reset_of_a_client_allows_other_values(costly: Any) -> None:
    row = costly()
    assert [use(TIMES_OF_A_CLIENT, value) for value in "abc"] == [200, 200, 429]
    services.reset(Endpoint.objects.get(pk=row.pk).resource_name, entity="ip:192.0.2.1")
    assert [use(1, value) for value in "ad"] == [429, 200]


def test_uncounted_responses_are_undone_for_all_values(costly: Any) -> None:
    costly(responses="errors")
    assert [use(TIMES_OF_A_CLIENT, value) for value in "abcd"] == [200] * 4


def test_long_names_of_clients_have_combinations(rule: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": lambda request: "tenant:" + "x" * 240}
    rule("query:q", counted_by="entity")
    client = Client()
    assert [client.get(f"/x/?q={value}").status_code for value in "aab"] == [200, 429, 200]


def test_values_are_not_stored(rule: Any) -> None:
    rule("form:username")
    response = Client().post("/x/", {"username": "a-secret"})
    assert all("a-secret" not in str(charge.entity) for charge in response.wsgi_request.limits.by_rules)


def test_a_combination_has_the_plan_of_its_client(rule: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": lambda request: "pro"}
    endpoint_row = rule("query:q", counted_by="entity")
    plan = Plan.objects.create(name="pro")
    resource = Endpoint.objects.get(pk=endpoint_row.pk).resource_name
    services.set_plan_limits(plan.name, "3/h", resource=resource)
    client = Client(headers={"X-Who": "ann"})
    assert [client.get("/x/?q=a").status_code for _ in range(4)] == [200, 200, 200, 429]


COUNTED: dict[str, dict[str, str]] = {
    "header": {"counted_by": "header", "header": "X-Tenant"},
    "session": {"counted_by": "session"},
    "ip": {"counted_by": "ip"},
    "entity": {"counted_by": "entity"},
}


@pytest.mark.parametrize("where", ["everywhere", "on the resource"])
@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
def test_a_blocked_client_is_blocked_with_every_value(rule: Any, counted: dict[str, str], where: str) -> None:
    row = rule("query:q", **counted)
    resource = Endpoint.objects.get(pk=row.pk).resource_name if where == "on the resource" else None
    client, other = signed_in("ann"), signed_in("bob")
    charge = client.get("/x/").wsgi_request.limits.by_rules[0]
    services.set_entity_limits(charge.client, [], resource=resource, effect="blocked")
    assert [client.get(f"/x/?q={value}").status_code for value in "ab"] == [403, 403]
    if counted["counted_by"] != "ip":
        assert [other.get(f"/x/?q={value}").status_code for value in "aa"] == [200, 429]


@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED)
def test_a_client_without_limits_has_none_with_any_value(rule: Any, counted: dict[str, str]) -> None:
    rule("query:q", **counted)
    client = signed_in("ann")
    charge = client.get("/x/").wsgi_request.limits.by_rules[0]
    services.set_entity_limits(charge.client, [], effect="unlimited")
    assert [client.get(f"/x/?q={value}").status_code for value in "aab"] == [200, 200, 200]


def test_a_combination_is_blocked_by_itself(rule: Any) -> None:
    rule("query:q", counted_by="header", header="X-Tenant")
    client = signed_in("ann")
    charge = client.get("/x/?q=a").wsgi_request.limits.by_rules[0]
    services.set_entity_limits(charge.entity, [], effect="blocked")
    assert [client.get(f"/x/?q={value}").status_code for value in "ab"] == [403, 200]


def signed_in(name: str) -> Client:
    """A client with a session, a name and a header of its own."""
    client = Client(headers={"X-Tenant": name, "X-Who": name})
    client.force_login(User.objects.create_user(name))
    return client


@pytest.mark.parametrize(
    "parts",
    ["x", "header", "header:", "header:a b", "nothing:x", "form:a:b", "\n".join(f"query:{n}" for n in range(6))],
)
def test_invalid_parts_are_rejected(parts: str) -> None:
    row = Endpoint(name="x", path="/x/", limits="1/h", combined_with=parts)
    with pytest.raises(ValidationError) as error:
        row.full_clean()
    assert list(error.value.message_dict) == ["combined_with"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("responses", "600"),
        ("responses", "ok"),
        ("responses", "4xxx"),
        ("block_for", "10"),
        ("block_for", "0s"),
        ("block_for", "400d"),
        ("cost", "X-Cost"),
        ("cost", "header:"),
        ("cost", "header:X Cost"),
        ("refusal_status", 200),
        ("refusal_status", 499),
    ],
)
def test_invalid_values_are_rejected(field: str, value: object) -> None:
    row = Endpoint(name="x", path="/x/", limits="1/h", **{field: value})
    with pytest.raises(ValidationError) as error:
        row.full_clean()
    assert list(error.value.message_dict) == [field]


def test_a_rule_that_was_written_past_the_validation_is_ignored(rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    row = rule("query:q")
    Endpoint.objects.filter(pk=row.pk).update(combined_with="nonsense")
    endpoints.clear()
    assert [Client().get("/x/").status_code for _ in range(2)] == [200, 200]
    assert "is ignored until it is corrected" in caplog.text
