"""Two pages: one with a limit in code, one without."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from limits_app import limited


@limited("orders", default_limits="3/h:sliding_window")
def orders(request: HttpRequest) -> HttpResponse:
    """A page with a limit in code."""
    return HttpResponse("orders")


def about(request: HttpRequest) -> HttpResponse:
    """A page that only rules for URLs limit."""
    return HttpResponse("about")


urlpatterns = [path("orders/", orders), path("about/", about)]
