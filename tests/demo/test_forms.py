"""Forms are read and filled as a browser does it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from project.demo import DemoFailed
from project.demo.forms import Form, Page

PAGE = """
<form id="search" action="/search/"><input name="q"></form>
<p class="errornote">Please correct   the errors below.</p>
<form id="policy_form" method="post">
  <input type="hidden" name="token" value="a&amp;b">
  <ul class="errorlist"><li>This is no <b>number</b>.</li></ul>
  <input name="name" value="old"><input type="number" name="order" value="100">
  <input type="checkbox" name="enabled" checked><input type="checkbox" name="hidden" value="yes">
  <input type="radio" name="how" value="fast"><input type="radio" name="how" value="slow" checked>
  <select name="effect"><option value="limits">limits</option><option value="blocked" selected>blocked</option></select>
  <select name="kind"><option value="rate">rate</option><option value="call">calls</option></select>
  <select name="groups" multiple><option value="1">first</option></select>
  <select name="resource" data-ajax--url="/find/" data-field-name="resource"></select>
  <textarea name="reason">
two
lines</textarea>
  <input type="hidden" name="limits-TOTAL_FORMS" value="1">
  <input name="limits-0-key"><input name="limits-__prefix__-key" value="new">
  <input type="checkbox" name="limits-__prefix__-DELETE">
  <input type="submit" name="_save" value="Save"><button name="_other">Other</button>
</form>
"""


@pytest.fixture
def form() -> Form:
    return Page(PAGE).forms["policy_form"]


def test_a_form_sends_what_a_browser_would_send(form: Form) -> None:
    assert form.fields == {
        "token": "a&b",
        "name": "old",
        "order": "100",
        "enabled": "on",
        "how": "slow",
        "effect": "blocked",
        "kind": "rate",
        "reason": "two\nlines",
        "limits-TOTAL_FORMS": "1",
        "limits-0-key": "",
        "limits-__prefix__-key": "new",
    }


def test_forms_are_told_apart_and_errors_are_found() -> None:
    page = Page(PAGE)
    assert page.forms["search"].action == "/search/"
    assert page.errors == ["Please correct the errors below.", "This is no", "number", "."]


def test_texts_are_typed_and_boxes_ticked(form: Form) -> None:
    form.fill(name="new", resource="7", enabled=False, hidden=True)
    assert (form.fields["name"], form.fields["resource"], form.fields["hidden"]) == ("new", "7", "yes")
    assert "enabled" not in form.fields


@pytest.mark.parametrize("values", [{"nmae": "new"}, {"name": True}, {"_save": "Save"}, {"groups": "1"}])
def test_a_field_that_is_not_there_is_named_with_those_that_are(form: Form, values: dict[str, str | bool]) -> None:
    with pytest.raises(DemoFailed, match=rf"no field '{next(iter(values))}' .* it has effect, enabled"):
        form.fill(**values)


def test_an_inline_grows_when_its_rows_are_used_up(form: Form) -> None:
    form.fill_row("limits", 0, key="first")
    form.fill_row("limits", 2, key="third", DELETE=True)
    rows = {name: value for name, value in form.fields.items() if name.startswith("limits-") and "__" not in name}
    assert rows == {
        "limits-TOTAL_FORMS": "3",
        "limits-0-key": "first",
        "limits-1-key": "new",
        "limits-2-key": "third",
        "limits-2-DELETE": "on",
    }


def test_an_inline_that_is_not_there_is_named(form: Form) -> None:
    with pytest.raises(DemoFailed, match="no inline 'pools'"):
        form.fill_row("pools", 0)


@pytest.mark.django_db
def test_the_pages_of_the_admin_can_be_read(client: Client) -> None:
    client.force_login(User.objects.create_superuser("admin"))
    page = Page(client.get(reverse("admin:limits_app_policy_add")).content.decode())
    form = page.forms["policy_form"]
    assert {"csrfmiddlewaretoken", "effect", "reason", "limits-TOTAL_FORMS", "limits-0-capacity"} <= form.fields.keys()
    assert form.searches.keys() == {"resource", "entity", "plan"}
    assert page.errors == []
