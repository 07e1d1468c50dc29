"""CORS preflights: which of them are not charged, and that no client avoids a limit by claiming to send one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import RedirectView, TemplateView
from pytest_django import Settings
from rest_framework.authentication import BaseAuthentication, BasicAuthentication, TokenAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.permissions import AllowAny, DjangoModelPermissions, IsAuthenticated
from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet, ViewSet

from limits_app.engine.limits import CallLimit
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, afine, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)

PREFLIGHT = {"Origin": "https://app.example", "Access_Control_Request_Method": "PUT"}


class Page(View):
    """A view that has no method of its own for OPTIONS."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")


class AsyncPage(View):
    """`Page` for asyncio."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("page")


class OwnOptions(Page):
    """Answers OPTIONS by its own code."""

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse("own")


class OwnDispatch(Page):
    """Runs its own code for every method."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class OwnSetup(Page):
    """Runs its own code before every method."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)


class NoOptions(Page):
    """Rejects OPTIONS by its own code."""

    http_method_names = ("get",)

    def http_method_not_allowed(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return HttpResponse("no", status=405)


class Members(LoginRequiredMixin, Page):
    """Looks the user up for every method."""


def decorated(view: Callable[..., Any]) -> Callable[..., Any]:
    """Run code of the site before a view."""

    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return view(request, *args, **kwargs)

    return inner


class Api(APIView):
    """A view of the REST framework with the framework's own policies."""

    authentication_classes = (BasicAuthentication, TokenAuthentication)
    permission_classes: Any = (AllowAny,)

    def get(self, request: Request, **captured: Any) -> Response:
        return Response("fine")


class OwnKeys(BaseAuthentication):
    """Authenticates by a header of its own."""

    def authenticate(self, request: Request) -> None:
        return None


class OwnPermission(AllowAny):
    """A permission of the site."""


class Users(ModelViewSet[User]):
    """Reads the database to describe itself."""

    queryset = User.objects.all()
    serializer_class = type(
        "Serializer", (ModelSerializer,), {"Meta": type("Meta", (), {"model": User, "fields": ["username"]})}
    )
    permission_classes = (DjangoModelPermissions,)
    authentication_classes = (BasicAuthentication,)


class Actions(ViewSet):
    """Actions without a serializer."""

    authentication_classes = (BasicAuthentication,)
    permission_classes = (AllowAny,)

    def list(self, request: Request) -> Response:
        return Response("fine")


class CheckedActions(ViewSet):
    """An action with a permission of its own."""

    authentication_classes = (BasicAuthentication,)
    permission_classes = (AllowAny,)

    @action(detail=False, permission_classes=[OwnPermission])
    def own(self, request: Request) -> Response:
        return Response("fine")


def routed(kind: Any) -> Callable[..., Any]:
    """Return the first view that a router of the REST framework makes of a view set."""
    router = SimpleRouter()
    router.register("x", kind, basename="x")
    view: Callable[..., Any] = router.urls[0].callback  # type: ignore[assignment]  # it has one
    return view


def of_api(**attributes: Any) -> Callable[..., Any]:
    """Return a view of the REST framework with other attributes."""
    view: Callable[..., Any] = type("Changed", (Api,), attributes).as_view()  # type: ignore[attr-defined]
    return view


FREE: dict[str, Callable[..., Any]] = {
    "class": Page.as_view(),
    "async_class": AsyncPage.as_view(),
    "template": TemplateView.as_view(template_name="x.html"),
    "csrf_exempt": csrf_exempt(Page.as_view()),
    "api": Api.as_view(),
    "api_for_members": of_api(permission_classes=[IsAuthenticated]),
    "api_without_metadata": of_api(metadata_class=None),
    "api_function": api_view(["GET"])(lambda request: Response("fine")),
    "view_set": routed(Actions),
}
CHARGED: dict[str, Callable[..., Any]] = {
    "function": fine,
    "async_function": afine,
    "own_options": OwnOptions.as_view(),
    "own_dispatch": OwnDispatch.as_view(),
    "own_setup": OwnSetup.as_view(),
    "own_405": NoOptions.as_view(),
    "redirect": RedirectView.as_view(url="/"),
    "mixin": Members.as_view(),
    "decorated": decorated(Page.as_view()),
    "decorated_inside": csrf_exempt(decorated(Page.as_view())),
    "decorated_dispatch": method_decorator(decorated, name="dispatch")(type("Inner", (Page,), {})).as_view(),
    "api_with_own_authentication": of_api(authentication_classes=[OwnKeys]),
    "api_with_own_permission": of_api(permission_classes=[OwnPermission]),
    "api_with_authentication_of_its_url": Api.as_view(authentication_classes=[OwnKeys]),
    "api_with_permission_of_its_url": Api.as_view(permission_classes=[OwnPermission]),
    "api_with_pages_of_its_url": Api.as_view(renderer_classes=[BrowsableAPIRenderer, JSONRenderer]),
    "class_with_method_of_its_url": Page.as_view(_allowed_methods=lambda: ["GET"]),
    "action_with_permission": routed(CheckedActions),
    "api_with_combined_permission": of_api(permission_classes=[AllowAny | OwnPermission]),
    "api_with_pages": of_api(renderer_classes=[BrowsableAPIRenderer, JSONRenderer]),
    "api_with_own_method": of_api(initial=lambda self, request, *args, **kwargs: None),
    "api_function_for_options": api_view(["GET", "OPTIONS"])(lambda request: Response("fine")),
    "view_set_with_options": Actions.as_view({"get": "list", "options": "list"}),
    "model": routed(Users),
}


@pytest.fixture
def preflights(ask: Ask, serve: Any) -> Callable[..., int]:
    """Return how many of three preflights of a view are charged, with other headers."""

    def charged(view: Callable[..., Any], path: str = "/x/", **headers: str) -> int:
        serve({"x/": view})
        endpoint(limit("api", CallLimit(9, 60)), "/*")
        answers = [ask(path, method="OPTIONS", **PREFLIGHT, **headers) for _ in range(3)]
        return sum("RateLimit" in answer for answer in answers)

    return charged


@pytest.mark.parametrize("view", FREE.values(), ids=FREE)
def test_preflight_that_only_the_framework_answers_is_not_charged(preflights: Any, view: Any) -> None:
    assert preflights(view) == 0


@pytest.mark.parametrize("view", CHARGED.values(), ids=CHARGED)
def test_preflight_that_runs_code_of_the_site_is_charged(preflights: Any, view: Any) -> None:
    assert preflights(view) == 3


@pytest.mark.parametrize("name", ["class", "api", "view_set"])
@pytest.mark.parametrize("header", [{"Authorization": "Token x"}, {"Cookie": "theme=dark"}], ids=["header", "cookie"])
def test_preflight_with_credentials_is_charged(preflights: Any, name: str, header: dict[str, str]) -> None:
    assert preflights(FREE[name], **header) == 3


def test_preflight_of_a_site_with_api_keys_is_charged(preflights: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": lambda request: None}
    assert preflights(FREE["class"], X_Key="a guess") == 3


@pytest.mark.parametrize("missing", PREFLIGHT)
def test_options_without_the_headers_of_a_preflight_is_charged(ask: Ask, serve: Any, missing: str) -> None:
    serve({"x/": Page.as_view()})
    endpoint(limit("api", CallLimit(2, 60)), "/x/")
    sent = {name: value for name, value in PREFLIGHT.items() if name != missing}
    assert [ask("/x/", method="OPTIONS", **sent).status_code for _ in range(3)] == [200, 200, 429]


def test_preflight_without_a_view_is_charged(ask: Ask, serve: Any) -> None:
    serve({"x/": Page.as_view()})
    endpoint(limit("api", CallLimit(2, 60)), "/*")
    assert [ask("/missing/", method="OPTIONS", **PREFLIGHT).status_code for _ in range(3)] == [404, 404, 429]


@pytest.mark.parametrize(("path", "accept"), [("/x/?format=api", "*/*"), ("/x/", "text/html")])
def test_preflight_that_chooses_a_page_is_charged(preflights: Any, path: str, accept: str) -> None:
    assert preflights(FREE["api"], path, Accept=accept) == 3


def test_passwords_are_not_guessed_by_preflights(ask: Ask, serve: Any) -> None:
    User.objects.create_user("eve", password="correct")
    serve({"me/": of_api(permission_classes=[IsAuthenticated])})
    endpoint(limit("guesses", CallLimit(4, 3600)), "/me/", counted_by="ip")
    guesses = [f"Basic {b64encode(f'eve:{word}'.encode()).decode()}" for word in ["a", "b", "c", "d", "correct"]]
    answers = [ask("/me/", method="OPTIONS", Authorization=guess, **PREFLIGHT).status_code for guess in guesses]
    assert answers == [401, 401, 401, 401, 429]
    assert ask("/me/", method="OPTIONS", **PREFLIGHT).status_code == 401  # of a browser, which sends no password


def override(get_response: Any) -> Any:
    """Take the method of a request from a header, as some middlewares do."""

    def middleware(request: HttpRequest) -> Any:
        request.method = request.headers.get("X-HTTP-Method-Override", request.method)
        return get_response(request)

    return middleware


@pytest.mark.parametrize("place", [0, 3], ids=["before", "after"])
def test_overridden_methods_are_charged_as_the_view_receives_them(
    ask: Ask, serve: Any, place: int, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:place], f"{__name__}.override", *MIDDLEWARE[place:]]
    serve({"x/": fine})
    endpoint(limit("api", CallLimit(2, 60)), "/x/", methods="DELETE")
    assert [ask("/x/", method="POST", X_HTTP_Method_Override="DELETE").status_code for _ in range(3)] == [200, 200, 429]
    assert ask("/x/", method="POST").status_code == 200
