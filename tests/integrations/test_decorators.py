"""`@limited` in all its forms, and `@exempt`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from threading import Barrier, Thread
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from pytest_django import Settings
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app import services
from limits_app.engine.errors import InvalidLimit, InvalidRequest, LimitExceeded
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.integrations.decorators import exempt, limited
from limits_app.integrations.request import limits_of
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.rest import Named
from tests.integrations.site import Ask, afine, fine, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

SITE = "without an entity"


class Page(View):
    """A page without limits."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


class AsyncPage(View):
    """The same, asynchronously."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@method_decorator(limited("api"), name="dispatch")
class ClassView(Page):
    pass


@method_decorator(limited("api"), name="dispatch")
class AsyncClassView(AsyncPage):
    pass


def plainly(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hands on what it gets."""

    @wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return call


class AsyncDispatchView(AsyncPage):
    @limited("api")
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


@method_decorator([csrf_exempt, limited("api"), plainly], name="dispatch")
class DecoratedAsyncClassView(AsyncPage):
    pass


class MethodView(View):
    @limited("api")
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


class AsyncMethodView(View):
    @limited("api")
    async def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@limited("api")
def by_name(*, request: HttpRequest) -> HttpResponse:
    """A view that wants its request by name."""
    return fine(request)


VIEWS = {
    "view": limited("api")(fine),
    "async_view": limited("api")(afine),
    "class_view": ClassView.as_view(),
    "async_class_view": AsyncClassView.as_view(),
    "async_dispatch": AsyncDispatchView.as_view(),
    "async_class_view_with_other_decorators": DecoratedAsyncClassView.as_view(),
    "method": MethodView.as_view(),
    "async_method": AsyncMethodView.as_view(),
    "decorated_class_view": limited("api")(ClassView.as_view()),
    "decorated_async_class_view": limited("api")(AsyncClassView.as_view()),
    "partial": limited("api")(partial(fine, extra=1)),
    "request_by_name": lambda request: by_name(request=request),
    "twice": limited("api")(limited("api")(fine)),
}


@pytest.mark.parametrize("with_middleware", [True, False], ids=["with_middleware", "without"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_limited(ask: Ask, serve: Any, settings: Settings, name: str, with_middleware: bool) -> None:
    settings.MIDDLEWARE = MIDDLEWARE if with_middleware else MIDDLEWARE[:-1]
    serve({"": VIEWS[name]})
    limit("api", CallLimit(2, 60), ResourceLimit("slots", 1))
    answers = [ask() for _ in range(3)]
    assert [response.status_code for response in answers] == [200, 200, 429]
    assert answers[2]["Retry-After"] == "30"
    assert ask(who="bob").status_code == 200
    assert left("api") == {"call_count": 0, "slots": 1}


@pytest.mark.parametrize("name", ["async_class_view", "class_view"])
def test_unanswered_methods_of_a_class_view_are_charged_too(ask: Ask, serve: Any, name: str) -> None:
    serve({"": VIEWS[name]})
    limit("api", CallLimit(2, 60))
    assert [ask(method="POST").status_code for _ in range(3)] == [405, 405, 429]


@pytest.mark.parametrize("view", [fine, afine])
@pytest.mark.parametrize(
    ("options", "charged"),
    [
        pytest.param({}, {"ann": (9, 99)}, id="the_requester"),
        pytest.param({"entity": "tenant:acme"}, {"tenant:acme": (9, 99)}, id="somebody"),
        pytest.param({"entity": lambda request, pk: f"thing:{pk}"}, {"thing:7": (9, 99)}, id="from_the_arguments"),
        pytest.param({"entity": lambda request, pk: None}, {SITE: (9, 99)}, id="the_site_itself"),
        pytest.param({"entity": lambda request, pk: ""}, {"ann": (9, 99)}, id="never_everybody"),
        pytest.param({"entity": lambda request, pk: "x" * 10_240}, {"ann": (10, 100)}, id="however_long_a_name"),
        pytest.param({"requested": {"tpm": 30}}, {"ann": (9, 70)}, id="as_much_as_it_says"),
        pytest.param({"requested": lambda request, pk: {"tpm": pk}}, {"ann": (9, 93)}, id="by_the_arguments"),
        pytest.param({"requested": lambda request, pk: None}, {"ann": (9, 99)}, id="or_one_of_each"),
    ],
)
def test_a_view_sets_the_entity_and_the_amounts(
    ask: Ask, serve: Any, view: Any, options: dict[str, Any], charged: dict[str, tuple[int, int]]
) -> None:
    serve({"<int:pk>/": limited("api", **options)(view)})
    limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60))
    assert ask("/7/").status_code == 200
    for entity, (calls, tokens) in charged.items():
        assert left("api", None if entity is SITE else entity) == {"call_count": calls, "tpm": tokens}


def of_the_database(request: HttpRequest) -> str:
    """Whom the database names."""
    return f"user:{request.user.pk}"


async def of_a_coroutine(request: HttpRequest) -> str:
    """Whom a coroutine names."""
    return f"user:{(await request.auser()).pk}"


def of_something_to_wait_for(request: HttpRequest) -> Any:
    """Whom a coroutine names, given on."""
    return of_a_coroutine(request)


async def two(request: HttpRequest) -> dict[str, int]:
    """An amount that has to be waited for."""
    return {"tpm": 2}


@pytest.mark.parametrize("view", [fine, afine], ids=["sync", "async"])
@pytest.mark.parametrize("entity", [of_the_database, of_a_coroutine, of_something_to_wait_for])
def test_callables_of_views_may_ask_the_database(view: Any, entity: Any, ask: Ask, serve: Any) -> None:
    serve({"": limited("api", entity=entity, requested=two)(view)})
    limit("api", RateLimit("tpm", 10, 60))
    assert ask().status_code == 200
    assert left("api", "user:None") == {"tpm": 8}


def both(pk: int, *, more: int = 0) -> tuple[int, int]:
    """A function that gives back what it takes."""
    return pk, more


async def aboth(pk: int, *, more: int = 0) -> tuple[int, int]:
    """The same as a coroutine."""
    await asyncio.sleep(0)
    return pk, more


def called(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """What a function gives, or a coroutine function when it is awaited."""
    return (async_to_sync(function) if iscoroutinefunction(function) else function)(*args, **kwargs)


functions = pytest.mark.parametrize("function", [both, aboth], ids=["sync", "async"])


async def of_an_argument(pk: int, *, more: int) -> str:
    """Whom a coroutine names."""
    return f"thing:{pk}"


@functions
def test_callables_of_functions_may_be_coroutines(function: Callable[..., Any]) -> None:
    limit("api")
    assert called(limited("api", entity=of_an_argument)(function), 7, more=3) == (7, 3)
    assert left("api", "thing:7") == {"call_count": 0}


@functions
@pytest.mark.parametrize(
    ("options", "after"),
    [
        pytest.param({}, {None: (9, 99)}, id="the_site_itself"),
        pytest.param({"entity": lambda pk, **more: f"thing:{pk}"}, {"thing:7": (9, 99)}, id="from_the_arguments"),
        pytest.param({"requested": lambda pk, more: {"tpm": pk + more}}, {None: (9, 90)}, id="by_the_arguments"),
        pytest.param({"requested": {"tpm": 0}}, {None: (9, 100)}, id="nothing_of_it"),
    ],
)
def test_a_function_is_charged(
    function: Callable[..., Any], options: dict[str, Any], after: dict[str | None, tuple[int, int]]
) -> None:
    limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    decorated = limited("api", **options)(function)
    assert decorated.__name__ == function.__name__
    assert called(decorated, 7, more=3) == (7, 3)
    for entity, (calls, tokens) in after.items():
        assert left("api", entity) == {"call_count": calls, "tpm": tokens, "slots": 1}


@functions
def test_a_function_that_is_refused_raises_and_does_not_run(function: Callable[..., Any]) -> None:
    limit("api")
    decorated = limited("api")(function)
    assert called(decorated, 7, more=3) == (7, 3)
    with pytest.raises(LimitExceeded, match="'call_count' of api has 0 of 1 left"):
        called(decorated, 7, more=3)


def raising(error: Exception, kind: str) -> Any:
    """A function, or a coroutine function, that fails."""

    def fail(*args: object) -> Any:
        raise error

    async def afail(*args: object) -> Any:
        raise error

    return fail if kind == "sync" else afail


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_failing_function_refunds_unused_amounts(kind: str) -> None:
    limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    with pytest.raises(KeyError, match="why"):
        called(limited("api", requested={"tpm": 40})(raising(KeyError("why"), kind)))
    assert left("api", None) == {"call_count": 9, "tpm": 100, "slots": 1}


def test_a_function_that_calls_itself_takes_one_permit() -> None:
    limit("api", ResourceLimit("slots", 1), CallLimit(10, 60))

    @limited("api")
    def count(depth: int) -> int:
        return 1 + count(depth - 1) if depth else 1

    @limited("api")
    async def acount(depth: int) -> int:
        return 1 + await acount(depth - 1) if depth else 1

    assert (count(2), async_to_sync(acount)(2)) == (3, 3)
    assert left("api", None) == {"slots": 1, "call_count": 4}


def test_a_block_holds_until_it_is_left() -> None:
    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    with limited("api", requested={"tpm": 40}) as acquisition:
        assert left("api", None) == {"tpm": 60, "slots": 0}
        acquisition.update({"tpm": 10})
    assert left("api", None) == {"tpm": 90, "slots": 1}
    with limited("api", requested={"tpm": 40}):
        pass
    assert left("api", None) == {"tpm": 50, "slots": 1}
    with pytest.raises(KeyError), limited("api", requested={"tpm": 40}):
        raise KeyError
    assert left("api", None) == {"tpm": 50, "slots": 1}
    with pytest.raises(LimitExceeded), limited("api", requested={"tpm": 60}):
        raise AssertionError


def test_an_asynchronous_block_holds_until_it_is_left() -> None:
    limit("api", ResourceLimit("slots", 1))

    async def use() -> dict[str, Any]:
        async with limited("api", entity=lambda: "ann") as acquisition:
            return acquisition.limit_set.get_stats()

    assert async_to_sync(use)()["slots"]["available"] == 0
    assert left("api") == {"slots": 1}


def test_a_block_may_be_shared_by_threads_and_entered_again() -> None:
    limit("api", ResourceLimit("slots", 10))
    shared, together, seen = limited("api"), Barrier(4), []

    def work(slots: int) -> None:
        with shared as acquisition:
            together.wait()
            seen.append(acquisition.acquisitions["slots"].requested)
            together.wait()

    with shared as outer, shared as inner:
        assert outer is not inner
    services.limit_set("api")
    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 4
    assert left("api", None) == {"slots": 10}


def test_blocks_of_one_thread_may_be_left_in_any_order() -> None:
    limit("api", ResourceLimit("slots", 2))
    first, second = limited("api", requested={"slots": 1}), limited("api", requested={"slots": 1})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert left("api", None) == {"slots": 1}
    second.__exit__(None, None, None)
    assert left("api", None) == {"slots": 2}


def test_a_block_that_was_never_entered_cannot_be_left() -> None:
    with pytest.raises(RuntimeError, match="enter and leave it in the same one"):
        limited("api").__exit__(None, None, None)


@pytest.mark.parametrize("function", [both, aboth, fine, afine])
def test_it_may_wait(function: Callable[..., Any], clock: FakeClock) -> None:
    limit("api", ResourceLimit("slots", 1))
    held = services.acquire("api", entity="ann")
    request = RequestFactory().get("/", headers={"X-Who": "ann"})
    argument = request if function in (fine, afine) else 1
    waiting = limited("api", entity="ann", timeout=60)(function)
    done: list[object] = []
    thread = Thread(target=lambda: done.append(called(waiting, argument)))
    services.limit_set("api", "ann")
    thread.start()
    while not registry.store().line.busy:
        pass
    held.release()
    thread.join()
    assert len(done) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("error", "tokens"), [(ValueError, 100), (Http404, 99)])
def test_without_the_middleware_a_failed_view_gives_back_too(kind: str, error: type[Exception], tokens: int) -> None:
    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    request = RequestFactory().get("/", headers={"X-Who": "ann"})
    with pytest.raises(error):
        called(limited("api")(raising(error(), kind)), request)
    request.close()
    assert left("api") == {"tpm": tokens, "slots": 1}


def test_a_view_that_is_cancelled_without_the_middleware_gives_back_too() -> None:
    async def waits(request: HttpRequest) -> HttpResponse:
        runs.set()
        await asyncio.Event().wait()
        return fine(request)

    async def cancelled() -> None:
        request = RequestFactory().get("/", headers={"X-Who": "ann"})
        task = asyncio.create_task(limited("api")(waits)(request))
        await runs.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        request.close()

    runs = asyncio.Event()
    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    async_to_sync(cancelled)()
    assert left("api") == {"tpm": 100, "slots": 1}


def test_an_exempt_view_that_is_limited_is_limited_by_its_own_decorator(ask: Ask, serve: Any) -> None:
    serve({"": exempt(limited("api")(fine)), "a/": limited("api")(exempt(fine))})
    limit("api", CallLimit(2, 60))
    assert [ask().status_code, ask("/a/").status_code, ask().status_code] == [200, 200, 429]


def log_in(request: HttpRequest) -> HttpResponse:
    """Answer as a view that logs people in: a redirect for the right password, the form again for a wrong one."""
    if request.headers.get("X-Password") == "right":
        return HttpResponse(status=302)
    if request.headers.get("X-Password") == "none":
        raise PermissionDenied
    return HttpResponse("try again")


async def alog_in(request: HttpRequest) -> HttpResponse:
    """`log_in` as a coroutine."""
    return log_in(request)


def wrong(response: HttpResponse) -> bool:
    """Whether it was the form again."""
    return response.status_code == 200


@pytest.mark.parametrize("view", [log_in, alog_in], ids=["sync", "async"])
def test_the_response_decides_whether_it_counts_and_its_amounts(view: Any, ask: Ask, serve: Any) -> None:
    limit("login", CallLimit(3, 3600), RateLimit("bytes", 100, 3600))
    serve({"": limited("login", counts=wrong, usage=lambda response: {"bytes": len(response.content)})(view)})
    assert [ask(X_Password="right").status_code for _ in range(5)] == [302] * 5
    assert left("login") == {"call_count": 3, "bytes": 100}
    assert [ask(X_Password="none").status_code for _ in range(2)] == [403, 403]  # an exception that is an answer
    assert [ask().status_code for _ in range(2)] == [200, 429]
    assert left("login") == {"call_count": 0, "bytes": 100 - 2 - len("try again")}


def test_the_result_of_a_function_sets_its_cost() -> None:
    limit("mail", RateLimit("letters", 10, 3600))

    @limited("mail", requested={"letters": 6}, usage=lambda sent: {"letters": sent})
    def send() -> int:
        return 2

    @limited("mail", counts=bool)
    async def send_none() -> int:
        return 0

    assert (send(), async_to_sync(send_none)()) == (2, 0)
    assert left("mail", None) == {"letters": 8}


def test_acquisitions_settled_by_the_view_are_left_alone(ask: Ask, serve: Any) -> None:
    def view(request: Any) -> HttpResponse:
        request.limits.acquisitions["api"].release()
        return fine(request)

    limit("api", CallLimit(2, 3600))
    serve({"": limited("api", counts=lambda response: False)(view)})
    ask()
    assert left("api") == {"call_count": 1}


def permits() -> object:
    """How many permits are free just now."""
    return left("api", None)["slots"]


def rows(count: int) -> Any:
    """Say what is free at each row; hand in what is sent, and give the count back."""
    for _ in range(count):
        yield permits()
    return count


async def arows(count: int) -> Any:
    """`rows` for asyncio."""
    for _ in range(count):
        yield await sync_to_async(permits)()


async def acollected(items: Any) -> list[object]:
    return [item async for item in items]


def test_a_generator_holds_from_its_first_item_to_its_last() -> None:
    limit("api", CallLimit(2, 60), ResourceLimit("slots", 1))
    given = limited("api")(rows)(2)
    assert permits() == 1
    assert list(given) == [0, 0]
    assert permits() == 1
    assert async_to_sync(acollected)(limited("api")(arows)(2)) == [0, 0]
    assert permits() == 1
    with pytest.raises(LimitExceeded):
        next(limited("api")(rows)(2))
    with pytest.raises(LimitExceeded):
        async_to_sync(acollected)(limited("api")(arows)(2))


def test_a_generator_that_is_not_exhausted_keeps_its_charge() -> None:
    async def first(items: Any) -> object:
        found = await anext(items)
        await items.aclose()
        return found

    limit("api", RateLimit("tpm", 10, 60), ResourceLimit("slots", 1))
    given = limited("api", requested={"tpm": 4})(rows)(2)
    assert next(given) == 0
    given.close()
    assert left("api", None) == {"tpm": 6, "slots": 1}
    assert async_to_sync(first)(limited("api", requested={"tpm": 4})(arows)(2)) == 0
    assert left("api", None) == {"tpm": 2, "slots": 1}


def test_failing_generator_refunds_unused_amounts() -> None:
    @limited("api", requested={"tpm": 4})
    def broken() -> Any:
        yield 1
        raise KeyError

    @limited("api", requested={"tpm": 4})
    async def abroken() -> Any:
        yield 1
        raise KeyError

    limit("api", RateLimit("tpm", 10, 60))
    with pytest.raises(KeyError):
        list(broken())
    with pytest.raises(KeyError):
        async_to_sync(acollected)(abroken())
    assert left("api", None) == {"tpm": 10}


def test_the_return_value_of_a_generator_sets_its_cost() -> None:
    limit("api", RateLimit("tpm", 10, 60), ResourceLimit("slots", 1))
    list(limited("api", requested={"tpm": 9}, usage=lambda count: {"tpm": count})(rows)(2))
    assert left("api", None)["tpm"] == 8


def test_sent_values_and_exceptions_arrive_in_a_generator() -> None:
    seen: list[object] = []

    @contextmanager
    @limited("api")
    def connection() -> Any:
        try:
            yield "open"
        except KeyError:
            seen.append(KeyError)

    @asynccontextmanager
    @limited("api")
    async def aconnection() -> Any:
        try:
            yield "open"
        except KeyError:
            seen.append(KeyError)

    @limited("api")
    async def echo() -> Any:
        sent = yield
        while True:
            sent = yield sent

    async def use() -> None:
        async with aconnection() as found:
            seen.append(found)
            raise KeyError
        given = echo()
        await anext(given)
        seen.extend([await given.asend(1), await given.asend(2)])
        await given.aclose()

    limit("api", ResourceLimit("slots", 1))
    with connection() as found:
        seen.append(found)
        raise KeyError
    async_to_sync(use)()
    assert seen == ["open", KeyError, "open", KeyError, 1, 2]
    assert permits() == 1


@pytest.mark.parametrize("kind", [rows, arows])
def test_a_generator_with_a_request_charges_its_client_until_the_response_is_sent(kind: Any) -> None:
    async def first(items: Any) -> None:
        async for _ in items:
            break
        await items.aclose()

    @limited("api")
    def lines(request: HttpRequest) -> Any:
        yield from rows(2)

    @limited("api")
    async def alines(request: HttpRequest) -> Any:
        async for row in arows(2):
            yield row

    limit("api", CallLimit(2, 60), ResourceLimit("slots", 1))
    request = RequestFactory().get("/", headers={"X-Who": "ann"})
    limits_of(request).has_middleware = True  # as the middleware says that it hears of the end
    for _ in range(2):
        if kind is rows:
            list(lines(request))
        else:
            async_to_sync(first)(alines(request))
    assert left("api") == {"call_count": 1, "slots": 0}
    limits_of(request).end()
    assert left("api") == {"call_count": 1, "slots": 1}


def test_a_plain_function_that_gives_a_coroutine_holds_until_that_was_awaited() -> None:
    async def work(*, fail: bool) -> object:
        if fail:
            raise KeyError
        return await sync_to_async(permits)()

    limit("api", RateLimit("tpm", 10, 60), ResourceLimit("slots", 2))
    start = limited("api", requested={"tpm": 4}, usage=lambda free: {"tpm": 1})(lambda fail: work(fail=fail))

    async def use(*, fail: bool) -> object:
        return await pending[fail]

    pending = [start(fail=False), start(fail=True)]
    assert async_to_sync(use)(fail=False) == 0
    with pytest.raises(KeyError):
        async_to_sync(use)(fail=True)
    assert left("api", None) == {"tpm": 9, "slots": 2}


@pytest.mark.usefixtures("default_entities")
def test_a_view_of_the_rest_framework_charges_the_authenticated_user(serve: Any) -> None:
    class Orders(APIView):
        authentication_classes = (Named,)

        @method_decorator(limited("api"))
        def get(self, request: Request) -> Response:
            return Response("fine")

        @limited("api")
        def post(self, request: Request) -> Response:
            return Response("fine")

    @api_view(["GET"])
    @authentication_classes([Named])
    @limited("api", entity=lambda request: f"user:{request.user.pk}")
    def orders(request: Request) -> Response:
        return Response("fine")

    serve({"": Orders.as_view(), "orders/": orders})
    limit("api", CallLimit(2, 60))
    ann, bob = {"X-Person": "1"}, {"X-Person": "2"}
    assert Client().get("/", headers=ann).status_code == 200
    assert Client().post("/", headers=ann).status_code == 200
    refused = Client().get("/orders/", headers=ann)
    assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["call_count"])
    assert refused["Retry-After"] == "30"
    assert refused["RateLimit"] == '"call_count";r=0;t=60'
    assert Client().get("/", headers=ann).status_code == 429
    assert Client().get("/", headers=bob)["RateLimit"] == '"call_count";r=1;t=30'
    assert left("api", None) == {"call_count": 2}


class NoView(View):
    """Nothing."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: limited(""), "resource '' must be a letter"),
        (lambda: limited(None), "resource None must be"),  # type: ignore[arg-type]
        (lambda: limited("api", entity=""), "entity '' must be text of 1 to 255 characters"),
        (limited("api", entity=lambda: "")(lambda: None), "entity '' must be text"),  # not everybody
        (lambda: limited("api", entity="tenant:{tenant}"), "taken as it is: give a function of the arguments"),
        (lambda: limited("api", entity="ip"), "entity 'ip' is one counter for all clients: .* such as client_of"),
        (lambda: limited("api", timeout=-1), "timeout must be None or seconds, 0 or more, not -1"),
        (lambda: limited("api")(NoView), r"@method_decorator\(limited\(...\), name='dispatch'\)"),
        (lambda: limited(fine), r"write @limited\('reports'\)"),  # type: ignore[arg-type]
        (lambda: exempt(NoView), r"@method_decorator\(exempt, name='dispatch'\)"),
        (lambda: limited("api", usage=lambda result: {})(arows), "an asynchronous generator has no result"),
        (lambda: limited("api", counts=bool)(arows), "an asynchronous generator has no result"),
        (lambda: limited("api", counts=bool).__enter__(), "a block has no result"),
        (async_to_sync(limited("api", usage=lambda result: {}).__aenter__), "a block has no result"),
    ],
)
def test_invalid_options_are_errors_where_they_are_written(make: Callable[[], object], said: str) -> None:
    with pytest.raises((InvalidLimit, InvalidRequest, TypeError), match=said):
        make()
