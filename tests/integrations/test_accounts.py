"""An account is limited however its name is spelled, where the log-in form takes the spellings for one name."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.utils.decorators import method_decorator

from limits_app.core.limits import CallLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.identity import entity_of_account
from tests.integrations.site import limit

pytestmark = pytest.mark.django_db(transaction=True)


def account(request: HttpRequest) -> str:
    """Whose password is tried."""
    return entity_of_account(request.POST.get("username", ""))


def failed(response: HttpResponse) -> bool:
    return response.status_code == 200


@method_decorator(limited("login.account", entity=account, counts=failed), name="dispatch")
class LogIn(LoginView):
    def form_invalid(self, form: object) -> HttpResponse:
        return HttpResponse("try again")


def attempt(username: str, password: str) -> int:
    return Client().post("/", {"username": username, "password": password}).status_code


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(" ann", id="a_space_before"),
        pytest.param("ann\t\n", id="white_space_after"),
        pytest.param("\u3000ann\u2003", id="wide_spaces"),
        pytest.param("\uff41n\uff4e", id="full_width_letters"),
        pytest.param("\N{MATHEMATICAL BOLD SMALL A}nn", id="mathematical_letters"),
    ],
)
def test_the_form_of_django_takes_no_spelling_that_is_counted_apart(spelling: str, serve: Any) -> None:
    User.objects.create_user("ann", password="correct horse")
    serve({"": LogIn.as_view()})
    limit("login.account", CallLimit(3, 3600))
    assert attempt(spelling, "correct horse") == 302
    assert [attempt("ann", f"guess {number}") for number in range(4)] == [200, 200, 200, 429]
    assert attempt(spelling, "correct horse") == 429
    assert attempt("bob", "a guess") == 200


def test_a_name_of_any_length_is_an_entity() -> None:
    assert entity_of_account("Ann") == "account:ann"
    assert entity_of_account("a" * 9999).startswith("digest:")
